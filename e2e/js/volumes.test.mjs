import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { Sandbox, Volume } from 'e2b'

async function volume(t) {
  const made = await Volume.create(`vol-${randomUUID().slice(0, 12)}`)
  t.after(() => Volume.destroy(made.volumeId))
  return made
}

/** Ends before the volumes that were made before it. */
async function mounting(t, volumeMounts) {
  const sandbox = await Sandbox.create({ timeoutMs: 600_000, volumeMounts })
  t.after(() => sandbox.kill())
  return sandbox
}

test('a volume is created, found and destroyed', async (t) => {
  const made = await volume(t)
  assert.ok((await Volume.list()).some((each) => each.volumeId === made.volumeId && each.name === made.name))
  assert.equal((await Volume.getInfo(made.volumeId)).name, made.name)
  assert.equal((await Volume.connect(made.volumeId)).name, made.name)
  await assert.rejects(Volume.create(made.name), /409/)
  assert.equal(await Volume.destroy(made.volumeId), true)
  assert.equal(await Volume.destroy(made.volumeId), false)
  await assert.rejects(Volume.getInfo(made.volumeId), { name: 'VolumeNotFoundError' })
})

test('a sandbox and the content calls see the same files', async (t) => {
  const made = await volume(t)
  const sandbox = await mounting(t, { '/data': made })
  await sandbox.files.write('/data/a', 'from the sandbox')
  assert.equal(await made.readFile('/a'), 'from the sandbox')
  const written = await made.writeFile('/dir-less', new Blob(['from outside']).stream(), { mode: 0o600 })
  assert.deepEqual([written.type, written.size, written.mode], ['file', 12, 0o600])
  assert.equal((await sandbox.commands.run('cat /data/dir-less', { user: 'root' })).stdout, 'from outside')
  assert.deepEqual((await sandbox.getInfo()).volumeMounts, [{ name: made.name, path: '/data' }])
  await assert.rejects(Volume.destroy(made.volumeId), /409/)
  await sandbox.kill()
  assert.equal(await Volume.destroy(made.volumeId), true)
})

test('files of a volume are listed, changed and removed', async (t) => {
  const made = await volume(t)
  await made.makeDir('/a/b', { force: true, mode: 0o750 })
  await made.writeFile('/a/b/c', 'x')
  assert.deepEqual(
    (await made.list('/', { depth: 3 })).map((each) => each.path),
    ['/a', '/a/b', '/a/b/c'],
  )
  assert.equal((await made.updateMetadata('/a/b/c', { mode: 0o640, uid: 9 })).mode, 0o640)
  const info = await made.getInfo('/a/b/c')
  assert.deepEqual([info.uid, info.name, info.type], [9, 'c', 'file'])
  assert.ok(info.mtime instanceof Date && Math.abs(info.mtime - Date.now()) < 600_000)
  assert.deepEqual(Buffer.from(await made.readFile('/a/b/c', { format: 'bytes' })).toString(), 'x')
  await made.remove('/a')
  assert.equal(await made.exists('/a/b'), false)
  await assert.rejects(made.remove('/a'), { name: 'VolumePathNotFoundError' })
  await assert.rejects(made.readFile('/a'), { name: 'VolumePathNotFoundError' })
})

test('an unknown volume and a bad path are refused', async (t) => {
  const made = await volume(t)
  await assert.rejects(mounting(t, { '/data': 'no-such-volume' }))
  await assert.rejects(mounting(t, { '/proc/x': made }), /400/)
})
