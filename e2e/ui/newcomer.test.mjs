// Somebody new, by mouse alone: from the sign-in link to a merged pull request, doing only what the pages say.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { BASE, api, closeBrowser, eventually, openPage, operatorKey } from './browser.mjs'

after(closeBrowser)

/** A project with nothing in it, an admin's key of it, and a page that a sign-in link opened. */
async function newProject(name) {
  const project = await api('POST', '/api/v1/projects', { name }, operatorKey())
  const made = await api('POST', `/api/v1/projects/${project.id}/keys`, { name: 'first', role: 'admin' }, operatorKey())
  const { token } = await api('POST', '/api/v1/sign-in-links', {}, made.key)
  const page = await openPage()
  await page.goto(`${BASE}/ui/#token=${token}`)
  await page.waitForURL(/\/ui\/board$/)
  return { page, key: made.key }
}

/** A mouse that counts: the only hand that these tests have. */
function mouse(page) {
  const hand = { clicks: 0 }
  hand.click = async (what) => {
    hand.clicks += 1
    await what.click()
  }
  page.keyboard.press = page.keyboard.type = () => assert.fail('there is no keyboard')
  return hand
}

test(
  'by mouse alone a newcomer gets from the sign-in link to a merged pull request, in at most 15 clicks',
  { timeout: 290_000 },
  async (t) => {
    const { page, key } = await newProject('first day')
    const hand = mouse(page)
    const steps = page.getByRole('region', { name: 'First steps' })
    await steps.getByText('It calls no model and needs no key.').waitFor()
    await hand.click(steps.getByRole('button', { name: 'Try the demo' }))
    await page.getByRole('heading', { name: /add the tax to the price/ }).waitFor()
    await page.getByRole('log').getByText('This is a scripted demo').waitFor()
    // The page tells when it is ready, and leads there.
    const toast = page.locator('[data-sonner-toast]').filter({ hasText: 'is ready for review' })
    await hand.click(toast.getByRole('button', { name: 'Open' }))
    const tab = (name) => page.getByRole('navigation', { name: 'Parts of the task' }).getByRole('link', { name })
    await hand.click(tab('Changes'))
    await page.getByRole('region', { name: 'Changes of price.sh' }).getByText('net + tax').waitFor()
    await hand.click(page.getByRole('button', { name: 'Merge', exact: true }))
    await hand.click(page.getByRole('dialog').getByRole('button', { name: 'Merge', exact: true }))
    await page.getByText('merged', { exact: true }).waitFor()
    const { items } = await api('GET', '/api/v1/repositories/demo-shop/pulls?state=merged', undefined, key)
    assert.equal(items.length, 1)
    t.diagnostic(`${hand.clicks} clicks from the sign-in link to the merge`)
    assert.ok(hand.clicks <= 15, `${hand.clicks} clicks`)

    // The demo is not a start of one's own: the checklist still leads there, and the demo runs again.
    await page.goto(`${BASE}/ui/board`)
    await steps.getByText('A repository, to do').waitFor()
    await hand.click(steps.getByRole('button', { name: 'Try the demo' }))
    await page.getByRole('heading', { name: /add the tax to the price/ }).waitFor()
    await eventually(
      async () => (await api('GET', '/api/v1/repositories', undefined, key)).items.length === 2,
      'a second repository',
    )
    assert.deepEqual(page.complaints, [])
    await page.context().close()
  },
)

test('the checklist makes what is missing in place, and no form is a dead end', { timeout: 290_000 }, async () => {
  const { page, key } = await newProject('own start')
  const steps = page.getByRole('region', { name: 'First steps' })
  await steps.getByRole('button', { name: 'Add repository' }).click()
  const repository = page.getByRole('dialog', { name: 'New repository' })
  await repository.getByText('From GitHub').click()
  await repository.getByRole('link', { name: 'Connect GitHub' }).waitFor()
  await repository.getByText('Import a bundle').click()
  await repository.locator('input[type=file]').setInputFiles({
    name: 'not-a-bundle.bundle',
    mimeType: 'application/octet-stream',
    buffer: Buffer.from('nothing of git'),
  })
  assert.equal(await repository.getByLabel('Name').inputValue(), 'not-a-bundle')
  await repository.getByRole('button', { name: 'Import' }).click()
  await repository.getByRole('alert').waitFor()
  await repository.getByText('Push to it').click()
  await repository.getByLabel('Name').fill('mine')
  await repository.getByRole('button', { name: 'Create' }).click()
  const push = page.getByRole('dialog', { name: 'Push to mine' })
  await push.getByText('git push coffer HEAD:main').waitFor()
  await push.getByRole('button', { name: 'Done' }).click()

  await steps.getByRole('button', { name: 'Add agent' }).click()
  const agent = page.getByRole('dialog', { name: 'New agent' })
  await agent.getByLabel('Program').selectOption('custom')
  await agent.getByLabel('Name').fill('mine')
  await agent.getByLabel('Command', { exact: true }).fill("sh -c 'echo pong' agent {prompt}")
  await agent.getByRole('button', { name: 'Create' }).click()
  await agent.waitFor({ state: 'detached' })
  await steps.getByRole('button', { name: 'Test it' }).click()
  const tested = page.getByRole('dialog', { name: 'Test mine' })
  await tested.getByRole('button', { name: 'Start the test' }).click()
  await tested.getByText('Took').waitFor()
  await tested.getByRole('button', { name: 'Close' }).first().click()

  // The only agent and the only repositories of the project are meant, and a task without them says so.
  const [made] = (await api('GET', '/api/v1/repositories', undefined, key)).items.filter(({ name }) => name !== 'mine')
  if (made !== undefined) await api('DELETE', `/api/v1/repositories/${made.name}`, undefined, key)
  await page.reload()
  await page.getByLabel('New task to do').fill('quick one')
  await page.keyboard.press('Enter')
  await page.getByRole('link', { name: 'quick one' }).waitFor()
  const [task] = (await api('GET', '/api/v1/tasks', undefined, key)).items
  const [{ id }] = (await api('GET', '/api/v1/agents', undefined, key)).items
  assert.deepEqual([task.repository?.endsWith('mine'), task.agent_id], [true, id])
  await api(
    'POST',
    '/api/v1/agents',
    { name: 'other', definition: { preset: 'custom', command: ['true', '{prompt}'] } },
    key,
  )
  await page.reload()
  await page.getByLabel('New task to do').fill('bare one')
  await page.keyboard.press('Enter')
  await page.getByText('Added. No agent yet: no agent can start it.').waitFor()
  await page.getByRole('link', { name: 'bare one' }).getByText('No agent').waitFor()
  await page.getByRole('button', { name: 'Fill in' }).click()
  const edit = page.getByRole('dialog', { name: 'Edit the task' })
  await edit.getByLabel('Agent', { exact: true }).selectOption('other')
  await edit.getByRole('button', { name: 'Save' }).click()
  await edit.waitFor({ state: 'detached' })
  await page.getByRole('link', { name: 'bare one' }).getByText('No agent').waitFor({ state: 'detached' })
  assert.deepEqual(page.complaints, [])
  await page.context().close()
})
