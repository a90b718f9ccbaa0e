// A member of Confluent's client (librdkafka), by its KafkaJS-like interface.
const { KafkaJS: { Kafka, logLevel } } = require('@confluentinc/kafka-javascript')
const { options, sessionMs, report, work } = require('./member.js')

const { topic } = options
const classic = { 'session.timeout.ms': sessionMs, 'heartbeat.interval.ms': sessionMs / 10 }
const kafka = new Kafka({ 'bootstrap.servers': options.bootstrap })
const consumer = kafka.consumer({
  kafkaJS: { groupId: options.group, fromBeginning: true, autoCommit: false, logLevel: logLevel.ERROR },
  'client.id': options.name,
  'group.protocol': options.protocol,
  'reconnect.backoff.max.ms': 1000,
  ...(options.protocol === 'classic' ? classic : {}),
  rebalance_cb: (error, assignment) => {
    const lanes = assignment.map(each => each.partition)
    // ERR__ASSIGN_PARTITIONS; ERR__REVOKE_PARTITIONS is the other
    report(error.code === -175 ? 'assigned' : 'revoked', { lanes, whole: false })
  }
})

// `commitOffsets` is done when the commit is queued. The coordinator's answer is an event of the
// client inside, which comes with the next poll.
function note (error, offsets) {
  for (const { partition, offset, error: own } of offsets) {
    if (error ?? own) report('commit_failed', { error: String(error ?? own) })
    else report('committed', { offsets: { [partition]: offset } })
  }
}

async function main () {
  await consumer.connect()
  consumer._getInternalClient().on('offset.commit', note)
  await consumer.subscribe({ topics: [topic] })
  await consumer.run({
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, isStale }) => {
      await work(batch.partition, batch.messages, async offset => {
        await consumer.commitOffsets([{ topic, partition: batch.partition, offset: String(offset) }])
        resolveOffset(String(offset - 1))
        return !isStale()
      }, { isDone: false })
    }
  })
}

process.on('SIGTERM', async () => {
  await consumer.disconnect()
  report('left')
  process.exit(0)
})
main().catch(error => {
  report('failed', { error: String(error) })
  process.exit(1)
})
