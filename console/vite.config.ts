import { defineConfig } from 'vite'

// The names of the files have a hash of their content, so that browsers may keep them. All lie in
// one folder, because the server knows names and no paths.
export default defineConfig({
  base: '/console/',
  build: {
    emptyOutDir: true,
    assetsDir: '',
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: 'es2022',
    rolldownOptions: {
      // Libraries say that they may run on a server, which does not matter here.
      onLog: (level, log, next) => log.code !== 'MODULE_LEVEL_DIRECTIVE' && next(level, log),
    },
  },
  server: { proxy: { '/v1': 'http://127.0.0.1:8080', '/version': 'http://127.0.0.1:8080' } },
})
