import { QueryClient, QueryClientProvider } from '@tanstack/react-query'
import { createRoot } from 'react-dom/client'
import { App } from './app'
import { Problem } from './api'
import './style.css'
import './theme'

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      // If the server refuses a query, it will refuse it again.
      retry: (failures, e) => e instanceof Problem && (e.status === 0 || e.status >= 500) && failures < 2,
      retryDelay: 1000,
    },
  },
})

createRoot(document.getElementById('root')!).render(
  <QueryClientProvider client={queries}>
    <App />
  </QueryClientProvider>,
)
