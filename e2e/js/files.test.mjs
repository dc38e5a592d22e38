import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { FileNotFoundError, InvalidArgumentError, NotFoundError } from 'e2b'
import { eventually, here, shared } from './sandbox.mjs'

const box = shared()
const bytes = Uint8Array.from({ length: 70_000 }, (_, n) => n % 256)

for (const [what, data, options] of [
  ['text', 'Zwölf Boxkämpfer', {}],
  ['bytes', bytes.buffer, {}],
  ['a blob', new Blob([bytes]), {}],
  ['a stream', () => new Blob([bytes]).stream(), { useOctetStream: true }],
  ['gzip', 'squeezed '.repeat(1000), { gzip: true }],
]) {
  test(`write ${what}, read it back in every form`, async () => {
    const sandbox = await box()
    const path = `${await here(sandbox)}/new/dir/file`
    const source = typeof data === 'function' ? data() : data
    const info = await sandbox.files.write(path, source, options)
    assert.deepEqual([info.path, info.name, info.type], [path, 'file', 'file'])
    const expected = typeof data === 'string' ? Buffer.from(data) : Buffer.from(bytes)
    assert.deepEqual(Buffer.from(await sandbox.files.read(path, { format: 'bytes' })), expected)
    assert.deepEqual(Buffer.from(await (await sandbox.files.read(path, { format: 'blob' })).arrayBuffer()), expected)
    const streamed = await sandbox.files.read(path, { format: 'stream' })
    assert.deepEqual(Buffer.from(await new Response(streamed).arrayBuffer()), expected)
    if (typeof data === 'string') assert.equal(await sandbox.files.read(path, { gzip: true }), data)
  })
}

test('many files, list, info, rename, remove', async () => {
  const { files, commands } = await box()
  const dir = await here(await box())
  const entries = [...Array(10).keys()].map((n) => ({ path: `${dir}/${n}/file ${n}`, data: `content ${n}` }))
  assert.deepEqual(
    (await files.write(entries)).map((info) => info.path),
    entries.map((entry) => entry.path),
  )
  assert.deepEqual(
    await Promise.all(entries.map((entry) => files.read(entry.path))),
    entries.map((entry) => entry.data),
  )
  assert.equal((await files.list(dir, { depth: 2 })).length, 20)
  const info = await files.getInfo(entries[0].path)
  assert.deepEqual(
    [info.size, info.mode, info.permissions, info.owner, info.group],
    [9, 0o644, '-rw-r--r--', 'user', 'user'],
  )
  assert.equal((await files.rename(entries[0].path, `${dir}/moved`)).path, `${dir}/moved`)
  assert.deepEqual([await files.exists(entries[0].path), await files.exists(`${dir}/moved`)], [false, true])
  assert.deepEqual([await files.makeDir(`${dir}/x/y`), await files.makeDir(`${dir}/x/y`)], [true, false])
  await commands.run('ln -s moved link', { cwd: dir })
  assert.equal((await files.getInfo(`${dir}/link`)).symlinkTarget, `${dir}/moved`)
  await files.remove(dir)
  await files.remove(dir)
  assert.equal(await files.exists(dir), false)
})

test('metadata of a file', async () => {
  const { files } = await box()
  const path = `${await here(await box())}/file`
  const metadata = { author: 'me', purpose: 'test it' }
  assert.deepEqual((await files.write(path, 'x', { metadata })).metadata, metadata)
  assert.deepEqual((await files.getInfo(path)).metadata, metadata)
  assert.equal((await files.write(path, 'y')).metadata, undefined)
})

test('a big file both ways', async () => {
  const { files, commands } = await box()
  const path = `${await here(await box())}/big`
  const size = Number(process.env.E2E_BIG_MIB ?? 256) << 20
  const block = randomBytes(1 << 20)
  const digest = createHash('sha256')
  let left = size
  const source = new ReadableStream({
    pull(controller) {
      if (left === 0) return controller.close()
      digest.update(block)
      controller.enqueue(new Uint8Array(block))
      left -= block.length
    },
  })
  await files.write(path, source, { useOctetStream: true, requestTimeoutMs: 280_000 })
  const inside = (await commands.run(`sha256sum ${path}`, { timeoutMs: 280_000 })).stdout.split(' ')[0]
  const back = createHash('sha256')
  for await (const chunk of await files.read(path, { format: 'stream', requestTimeoutMs: 280_000 })) back.update(chunk)
  const expected = digest.digest('hex')
  assert.deepEqual([inside, back.digest('hex')], [expected, expected])
  await files.remove(path)
})

test('refusals', async () => {
  const { files } = await box()
  const dir = await here(await box())
  await files.write(`${dir}/file`, 'x')
  await assert.rejects(files.read(`${dir}/none`), FileNotFoundError)
  await assert.rejects(files.getInfo(`${dir}/none`), NotFoundError)
  await assert.rejects(files.rename(`${dir}/none`, `${dir}/other`), NotFoundError)
  await assert.rejects(
    files.watchDir(`${dir}/none`, () => {}),
    NotFoundError,
  )
  await assert.rejects(
    files.watchDir(`${dir}/file`, () => {}),
    InvalidArgumentError,
  )
  await assert.rejects(files.list(`${dir}/file`), InvalidArgumentError)
})

test('watch: three events for one upload, and what happens below', async () => {
  const { files } = await box()
  const dir = await here(await box())
  const seen = []
  const watch = await files.watchDir(dir, (event) => void seen.push(`${event.type} ${event.name}`), {
    recursive: true,
    timeoutMs: 0,
  })
  await files.write(`${dir}/file`, 'x')
  await eventually(() => seen.includes('write file'))
  assert.deepEqual(seen, ['create file', 'chmod file', 'write file'])
  await files.makeDir(`${dir}/nested`)
  await eventually(() => seen.includes('create nested'))
  await files.write(`${dir}/nested/file`, 'x')
  await eventually(() => seen.includes('write nested/file'))
  await watch.stop()
})

test('signed URLs', async () => {
  const sandbox = await box()
  await sandbox.files.write('hello.txt', 'hello')
  for (const useSignatureExpiration of [undefined, 600]) {
    const url = await sandbox.downloadUrl('hello.txt', { useSignatureExpiration })
    assert.equal(await (await fetch(url)).text(), 'hello')
  }
  const form = new FormData()
  form.append('file', 'by url')
  const uploaded = await fetch(await sandbox.uploadUrl('up.txt', { useSignatureExpiration: 600 }), {
    method: 'POST',
    body: form,
  })
  assert.deepEqual(await uploaded.json(), [{ path: '/home/user/up.txt', name: 'up.txt', type: 'file' }])
  const expired = await fetch(await sandbox.downloadUrl('hello.txt', { useSignatureExpiration: -60 }))
  assert.equal(expired.status, 401)
  assert.deepEqual(await expired.json(), { code: 401, message: 'signature is already expired' })
})
