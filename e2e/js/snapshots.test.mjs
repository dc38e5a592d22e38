import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { Sandbox } from 'e2b'
import { make } from './sandbox.mjs'

async function listed(query) {
  const pages = Sandbox.listSnapshots(query)
  const found = []
  while (pages.hasNext) found.push(...(await pages.nextItems()).map((snapshot) => snapshot.snapshotId))
  return found
}

/** The old SDK takes the template as an argument of its own only. */
async function begin(t, template) {
  const sandbox = await Sandbox.create(template, { timeoutMs: 600_000 })
  t.after(() => sandbox.kill())
  return sandbox
}

test('a snapshot is made, listed, begun with and deleted', async (t) => {
  const source = await make(t)
  const name = `snap-${randomUUID().slice(0, 12)}`
  await source.files.write('/home/user/kept', 'from the source')
  const snapshot = await source.createSnapshot({ name })
  t.after(() => Sandbox.deleteSnapshot(snapshot.snapshotId))
  assert.ok(snapshot.snapshotId.endsWith(`/${name}:default`))
  await source.files.write('/home/user/kept', 'changed since')
  assert.deepEqual(await listed({ sandboxId: source.sandboxId }), [snapshot.snapshotId])
  for (const template of [name, snapshot.snapshotId]) {
    const child = await begin(t, template)
    assert.equal(await child.files.read('/home/user/kept'), 'from the source')
  }
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
  assert.deepEqual(await listed({ sandboxId: source.sandboxId }), [])
  await assert.rejects(begin(t, snapshot.snapshotId))
})

test('a fork is apart from its source', async (t) => {
  const source = await make(t)
  await source.files.write('/home/user/shared', 'before')
  const children = await source.fork({ count: 2, timeoutMs: 600_000 })
  for (const child of children) if (child instanceof Sandbox) t.after(() => child.kill())
  assert.ok(
    children.every((child) => child instanceof Sandbox),
    String(children),
  )
  await children[0].files.write('/home/user/shared', 'of a child')
  assert.equal(await children[1].files.read('/home/user/shared'), 'before')
  assert.equal(await source.files.read('/home/user/shared'), 'before')
  assert.notEqual(children[0].sandboxId, children[1].sandboxId)
})

test('a paused sandbox cannot be forked', async (t) => {
  const source = await make(t)
  await source.pause()
  await assert.rejects(source.fork(), /resume it first/)
})
