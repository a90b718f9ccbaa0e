// What the members of all JavaScript clients share: their options, and their reports.
const { writeSync } = require('node:fs')
const { parseArgs } = require('node:util')

const { values: options } = parseArgs({
  options: {
    bootstrap: { type: 'string' },
    topic: { type: 'string' },
    group: { type: 'string' },
    name: { type: 'string' },
    protocol: { type: 'string', default: 'classic' },
    'session-timeout-ms': { type: 'string', default: '10000' }
  }
})

// The most records that a member takes before it commits.
const BATCH = 50

// One line, at once: a killed member must not have reported less than it committed.
// `at_s` is of the machine's monotonic clock.
function report (event, values = {}) {
  const line = Buffer.from(JSON.stringify({ event, at_s: Number(process.hrtime.bigint()) / 1e9, ...values }) + '\n')
  for (let written = 0; written < line.length;) {
    try {
      written += writeSync(1, line, written)
    } catch (error) {
      if (error.code !== 'EAGAIN') process.exit(1) // nothing reads the reports any more
    }
  }
}

// Processes the messages of a batch in parts: reports each part, then commits it.
// isDone: a commit is confirmed when `commit` returns.
async function work (lane, messages, commit, { isDone = true } = {}) {
  for (let first = 0; first < messages.length; first += BATCH) {
    const part = messages.slice(first, first + BATCH)
    report('records', {
      records: part.map(m => [lane, Number(m.offset), m.key?.toString() ?? null, m.value.toString()])
    })
    const offset = Number(part[part.length - 1].offset) + 1
    let goesOn
    try {
      goesOn = await commit(offset)
    } catch (error) {
      report('commit_failed', { error: String(error) })
      throw error // the client goes back to what was committed, or joins again
    }
    if (isDone) report('committed', { offsets: { [lane]: offset } })
    if (!goesOn) return
  }
}

module.exports = { options, sessionMs: Number(options['session-timeout-ms']), report, work }
