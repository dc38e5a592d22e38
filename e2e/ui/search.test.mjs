// The palette: what it finds, however old, and what it does.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { api, closeBrowser, openPage, signIn } from './browser.mjs'

after(closeBrowser)

test('any task is found, however old, and only by words that it has', async () => {
  const [old, node] = await Promise.all(
    ['admin panel #3', 'Move to Node 22'].map((title) => api('POST', '/api/v1/tasks', { title, state: 'backlog' })),
  )
  const others = []
  for (let at = 0; at < 220; at += 10)
    others.push(
      ...(await Promise.all(
        Array.from({ length: 10 }, (_, n) =>
          api('POST', '/api/v1/tasks', { title: `admin panel ${at + n}x`, state: 'done' }),
        ),
      )),
    )
  const page = await openPage()
  await signIn(page, '/ui/monitoring')
  await page.keyboard.press('Control+k')
  const field = page.getByPlaceholder('Find a task')
  await field.fill('panel admin #3')
  await page.getByRole('option', { name: 'admin panel #3' }).waitFor()
  await field.fill('vat')
  await page.getByText('No results.').waitFor()
  await field.fill('node 22')
  await page.getByRole('option', { name: 'Move to Node 22' }).click()
  await page.waitForURL(new RegExp(`/ui/tasks/${node.id}`))
  // What the page can do is an action of the palette.
  await page.getByRole('heading', { name: 'Move to Node 22' }).waitFor()
  await page.keyboard.press('Control+k')
  await field.fill('edit')
  await page.getByRole('option', { name: /^Edit/ }).first().click()
  await page.getByRole('dialog', { name: 'Edit the task' }).waitFor()
  assert.deepEqual(page.complaints, [])
  await page.context().close()
  for (const { id } of [old, node, ...others]) await api('DELETE', `/api/v1/tasks/${id}`)
})
