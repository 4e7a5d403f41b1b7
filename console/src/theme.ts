// Light or dark: what the system says, unless the viewer has chosen.
const key = 'weir-theme'
const dark = matchMedia('(prefers-color-scheme: dark)')

function apply() {
  const chosen = localStorage.getItem(key)
  document.documentElement.dataset.theme = chosen ?? (dark.matches ? 'dark' : 'light')
}

export function isDark(): boolean {
  return document.documentElement.dataset.theme === 'dark'
}

export function toggleTheme() {
  localStorage.setItem(key, isDark() ? 'light' : 'dark')
  apply()
}

dark.addEventListener('change', apply)
apply()
