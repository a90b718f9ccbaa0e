// The stream of the feed: opens it, opens it again, and knows since when nothing came.

const SILENT_MS = 30_000;  // the server writes at least every ten seconds
const AGAIN_MS = 3000;
const NAMES = ["layout", "state", "events", "beat"];

export function openFeed(handlers, onLink) {
  const link = { isOpen: false, isLost: false, sinceMs: null };
  let source = null, lastMs = Date.now();

  const lose = () => {
    if (!link.isLost) Object.assign(link, { isLost: true, isOpen: false, sinceMs: lastMs });
    onLink(link);
  };
  const open = () => {
    source?.close();
    source = new EventSource("page/events");
    for (const name of NAMES) {
      source.addEventListener(name, (event) => {
        lastMs = Date.now();
        if (!link.isOpen) {
          Object.assign(link, { isOpen: true, isLost: false, sinceMs: null });
          onLink(link);
        }
        handlers[name]?.(JSON.parse(event.data));
      });
    }
    source.addEventListener("error", () => {
      lose();
      // After an answer that is no stream the browser gives up by itself.
      if (source.readyState === EventSource.CLOSED) setTimeout(open, AGAIN_MS);
    });
  };
  setInterval(() => {
    if (Date.now() - lastMs > SILENT_MS) {
      lose();
      lastMs = Date.now();
      open();
    }
  }, 1000);
  open();
  return link;
}
