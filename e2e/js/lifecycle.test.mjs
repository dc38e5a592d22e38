import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AuthenticationError, Sandbox, SandboxError, SandboxNotFoundError } from 'e2b'
import { eventually, make, shared, tag, visit } from './sandbox.mjs'

const box = shared()
const listed = (metadata, query = {}) => Sandbox.list({ query: { metadata, ...query } }).nextItems()

test('create, info, environment, list', async (t) => {
  const metadata = { ...tag(), 'a key': 'a=b&c%20d ☂' }
  const sandbox = await make(t, { metadata, envs: { COLOUR: 'blue' }, timeoutMs: 300_000 })
  assert.equal((await sandbox.commands.run('echo $COLOUR $E2B_SANDBOX_ID')).stdout, `blue ${sandbox.sandboxId}\n`)
  const info = await sandbox.getInfo()
  assert.deepEqual([info.state, info.metadata], ['running', metadata])
  const life = info.endAt - info.startedAt
  assert.ok(life > 290_000 && life <= 310_000, `${life}`)
  assert.deepEqual(
    (await listed(metadata)).map((s) => s.sandboxId),
    [sandbox.sandboxId],
  )
})

test('paging, newest first, over states', async (t) => {
  const metadata = tag()
  const ids = []
  for (let n = 0; n < 3; n++) ids.unshift((await make(t, { metadata })).sandboxId)
  await Sandbox.pause(ids[1])
  const pages = Sandbox.list({ query: { metadata, state: ['running', 'paused'] }, limit: 2 })
  const first = await pages.nextItems()
  assert.ok(pages.hasNext && pages.nextToken)
  const second = await pages.nextItems()
  assert.deepEqual(
    [...first, ...second].map((s) => s.sandboxId),
    ids,
  )
  assert.equal(pages.hasNext, false)
  assert.deepEqual(
    (await listed(metadata, { state: ['paused'] })).map((s) => s.sandboxId),
    [ids[1]],
  )
})

test('timeout ends it, kill twice', async (t) => {
  const metadata = tag()
  const [timed, killed] = [await make(t, { metadata }), await make(t, { metadata })]
  await timed.setTimeout(1000)
  assert.deepEqual([await killed.kill(), await killed.kill()], [true, false])
  await eventually(async () => (await listed(metadata)).length === 0)
  for (const sandbox of [timed, killed]) {
    assert.equal(await sandbox.isRunning(), false)
    await assert.rejects(Sandbox.connect(sandbox.sandboxId), SandboxNotFoundError)
    await assert.rejects(sandbox.setTimeout(1000), SandboxNotFoundError)
  }
})

test('connect only extends', async (t) => {
  const sandbox = await make(t, { timeoutMs: 300_000 })
  const end = async () => (await sandbox.getInfo()).endAt.getTime()
  const before = await end()
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
  assert.equal(await end(), before)
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 900_000 })
  assert.ok((await end()) > before)
})

for (const [what, template, options, status] of [
  ['unknown template', 'no-such-template', {}, '404'],
  ['over-long timeout', 'base', { timeoutMs: 1e12 }, '400'],
  ['metadata that is no string', 'base', { metadata: { number: 7 } }, '400'],
]) {
  test(`create refuses ${what} and leaves nothing`, async () => {
    const metadata = tag()
    const create = Sandbox.create(template, {
      timeoutMs: 60_000,
      ...options,
      metadata: { ...metadata, ...options.metadata },
    })
    await assert.rejects(create, (error) => error instanceof SandboxError && error.message.includes(status))
    assert.deepEqual(await listed(metadata), [])
  })
}

test('wrong key', async () => {
  const apiKey = 'e2b_' + '0'.repeat(40)
  await assert.rejects(Sandbox.create({ apiKey }), AuthenticationError)
  await assert.rejects(Sandbox.list({ apiKey }).nextItems(), AuthenticationError)
})

test('metrics', async () => {
  const sandbox = await box()
  const [sample] = await eventually(async () => {
    const samples = await sandbox.getMetrics()
    return samples.length ? samples : undefined
  })
  assert.ok(sample.cpuCount >= 1 && sample.memUsed > 0 && sample.memUsed <= sample.memTotal && sample.diskTotal > 0)
  const now = Date.now()
  assert.deepEqual(await sandbox.getMetrics({ start: new Date(now - 7_200_000), end: new Date(now - 3_600_000) }), [])
})

test('secure: envd wants its own token', async () => {
  const request = {
    path: '/process.Process/List',
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: '{}',
  }
  assert.equal((await visit(await box(), 49983, request)).status, 401)
})
