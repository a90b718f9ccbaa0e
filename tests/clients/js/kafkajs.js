// A member of KafkaJS: node kafkajs.js --bootstrap HOST:PORT --topic T --group G --name N
const { Kafka, logLevel } = require('kafkajs')
const { options, sessionMs, report, work } = require('./member.js')

const { topic } = options
const kafka = new Kafka({
  clientId: options.name,
  brokers: [options.bootstrap],
  // The default of 1 s ends connections on a busy machine.
  connectionTimeout: 10_000,
  logLevel: logLevel.ERROR,
  logCreator: () => ({ log }) => console.error(new Date().toISOString(), log.message, log.error ?? '')
})
const consumer = kafka.consumer({
  groupId: options.group,
  sessionTimeout: sessionMs,
  heartbeatInterval: sessionMs / 10
})
const { GROUP_JOIN, REBALANCING, CRASH } = consumer.events
consumer.on(GROUP_JOIN, ({ payload }) => {
  report('assigned', { lanes: payload.memberAssignment[topic] ?? [], whole: true })
})
consumer.on(REBALANCING, () => report('rebalancing'))
consumer.on(CRASH, ({ payload }) => {
  report('failed', { error: String(payload.error) })
  // An error that KafkaJS does not get over ends the consumer: the application starts it again.
  if (!payload.restart) run().catch(end)
})

async function run () {
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
      await work(batch.partition, batch.messages, async offset => {
        await consumer.commitOffsets([{ topic, partition: batch.partition, offset: String(offset) }])
        resolveOffset(String(offset - 1))
        await heartbeat()
        return isRunning() && !isStale()
      })
    }
  })
}

function end (error) {
  report('failed', { error: String(error) })
  process.exit(1)
}

process.on('SIGTERM', async () => {
  await consumer.stop()
  report('left')
  await consumer.disconnect()
  process.exit(0)
})
run().catch(end)
