// Light or dark: the system's choice, unless the viewer has chosen.
import { useSyncExternalStore } from 'react'

const key = 'weir-theme'
const listeners = new Set<() => void>()
const dark = matchMedia('(prefers-color-scheme: dark)')

function apply() {
  const chosen = localStorage.getItem(key)
  document.documentElement.dataset.theme = chosen ?? (dark.matches ? 'dark' : 'light')
  for (const heard of listeners) heard()
}

function listen(heard: () => void) {
  listeners.add(heard)
  return () => {
    listeners.delete(heard)
  }
}

// useDark returns isDark, and draws a component again when it changes.
export function useDark(): boolean {
  return useSyncExternalStore(listen, isDark)
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
