// The control API, asked from its own page: JSON in and out, problem documents as errors.

// A server that hangs must not gather the questions of a page that asks again. A change has no limit:
// without its answer it is unknown whether it was made.
const LOOK_MS = 30_000;

export class Problem extends Error {
  constructor(status, document) {
    super(document?.detail ?? `the answer has the status ${status}`);
    this.status = status;
    this.document = document;
  }
}

async function parsed(response) {
  try {
    return await response.json();
  } catch {
    return null;  // no JSON: a proxy in between, or no body
  }
}

export async function ask(path, options = {}) {
  const { method = "GET", body, version } = options;
  const isLook = method === "GET" || path.endsWith("?dry_run=true");
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (version !== undefined) headers["If-Match"] = `"${version}"`;
  let response;
  try {
    // A redirect leads to another node, whose answers this page's policy keeps out.
    response = await fetch(path, {
      method, headers, redirect: "manual", body: body === undefined ? undefined : JSON.stringify(body),
      signal: isLook ? AbortSignal.timeout(LOOK_MS) : undefined,
    });
  } catch {
    throw new Problem(0, {
      detail: isLook ? "keylane cannot be reached"
        : "no answer came: it is not known whether the change was made; look before you ask again",
    });
  }
  if (response.type === "opaqueredirect") {
    throw new Problem(307, { detail: "another node answers this: open the page of that node" });
  }
  const document = await parsed(response);
  if (!response.ok) throw new Problem(response.status, document);
  if (document === null && response.status !== 204) {
    throw new Problem(response.status, { detail: "the answer is not complete, or not keylane's" });
  }
  return document;
}

export const part = encodeURIComponent;
