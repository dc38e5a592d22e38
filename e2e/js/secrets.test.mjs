import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { Sandbox, Secret, SecretError, SecretNotFoundError } from 'e2b'
import { make } from './sandbox.mjs'

/** The name of a secret that ends with the test. */
function named(t) {
  const name = `e2e-${randomUUID().slice(0, 12)}`
  t.after(() => Secret.destroy(name))
  return name
}

test('a secret is created, updated, found and destroyed', async (t) => {
  const name = named(t)
  const made = await Secret.create(name.toUpperCase(), 'first value', { metadata: { team: 'agents' } })
  assert.deepEqual([made.name, made.version, made.metadata], [name, 1, { team: 'agents' }])
  assert.deepEqual(await Secret.getInfo(made.secretId), made)
  assert.deepEqual(await Secret.getInfo(name), made)
  await assert.rejects(Secret.create(name, 'another value'), (error) => {
    assert.ok(error instanceof SecretError && /409: a secret named .* exists already/.test(error.message), error)
    return true
  })
  const updated = await Secret.update(name, 'second value')
  assert.deepEqual([updated.secretId, updated.version, updated.metadata], [made.secretId, 2, made.metadata])
  assert.equal(await Secret.exists(name), true)
  assert.equal(await Secret.destroy(made.secretId), true)
  assert.equal(await Secret.destroy(made.secretId), false)
  assert.equal(await Secret.exists(name), false)
  await assert.rejects(Secret.getInfo(name), SecretNotFoundError)
  await assert.rejects(Secret.update(made.secretId, 'value'), SecretNotFoundError)
})

test('pages have every secret', async (t) => {
  const name = named(t)
  const names = [0, 1, 2].map((number) => `${name}-${number}`)
  t.after(() => Promise.all(names.map((each) => Secret.destroy(each))))
  for (const each of names) await Secret.create(each, 'value')
  const pages = Secret.list({ limit: 2 })
  const found = []
  while (pages.hasNext) found.push(...(await pages.nextItems()).map((secret) => secret.name))
  assert.deepEqual(
    found.filter((each) => each.startsWith(name)),
    names,
  )
})

test('a rule takes a secret and shows only its name', async (t) => {
  const name = named(t)
  await Secret.create(name, 'canary-of-the-rule')
  const rules = { 'api.example.com': [{ transform: { headers: { 'X-Token': Secret.fill(name) } } }] }
  const sandbox = await make(t, { network: { rules } })
  const info = JSON.stringify(await sandbox.getInfo())
  assert.ok(info.includes(`\${e2b.secrets.${name}}`) && !info.includes('canary'), info)
  const none = { 'api.example.com': [{ transform: { headers: { X: Secret.fill('nothing-of-this-name') } } }] }
  await assert.rejects(Sandbox.create({ network: { rules: none } }), /secret 'nothing-of-this-name' not found/)
})

test('workload identity is refused with the reason', async () => {
  const aws = Secret.iamToken({ audience: 'sts.amazonaws.com', tokenType: 'JWT-SVID' })
  await assert.rejects(Sandbox.create({ iam: { tokens: { aws } } }), /use a secret in network.rules instead/)
})
