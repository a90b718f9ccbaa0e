// A producer, a member and an admin of KafkaJS: node kafka.js BOOTSTRAP PREFIX GROUP
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, prefix, group] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.ERROR })

async function main () {
  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  await producer.send({ topic: prefix + 'a', messages: [{ key: 'k', value: 'v' }] })
  await producer.disconnect()
  const member = kafka.consumer({ groupId: group })
  await member.connect()
  await member.subscribe({ topics: [new RegExp('^' + prefix)], fromBeginning: true })
  await new Promise((resolve, reject) => {
    member.run({ eachMessage: async () => resolve() }).catch(reject)
  })
  await member.stop()
  await member.disconnect()
  const admin = kafka.admin()
  await admin.connect()
  await admin.listTopics()
  await admin.fetchTopicMetadata({ topics: [prefix + 'a', prefix + 'b'] })
  await admin.fetchTopicOffsets(prefix + 'a')
  await admin.fetchOffsets({ groupId: group })
  await admin.fetchOffsets({ groupId: group, topics: [prefix + 'a'] })
  await admin.describeGroups([group])
  await admin.describeCluster()
  await admin.describeConfigs({ resources: [{ type: 2, name: prefix + 'a' }] })
  await admin.setOffsets({ groupId: group, topic: prefix + 'a', partitions: [{ partition: 0, offset: '0' }] })
  await admin.deleteGroups([group])
  await admin.disconnect()
  console.log('kafkajs')
}

main().catch(error => { console.error(error); process.exit(1) })
