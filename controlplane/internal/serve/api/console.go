package api

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/serve/console"
)

// consolePolicy lets the console load its own files and call its own server, and nothing else: no
// script or style in the page, no other host, no frame.
const consolePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

// forConsole adds the console's files and its login.
func (s *server) forConsole(e *echo.Echo) {
	e.GET("/console", func(c echo.Context) error { return sendNamed(c, console.Index) })
	e.GET("/console/:file", func(c echo.Context) error { return sendNamed(c, c.Param("file")) })
	e.POST("/v1/session", s.login)
	e.GET("/v1/session", s.whoami)
	e.DELETE("/v1/session", s.logout)
}

func sendNamed(c echo.Context, name string) error {
	files, err := console.Files()
	if err != nil {
		return err
	}
	file, ok := files[name]
	if !ok {
		return noConsoleFile(len(files) == 0)
	}
	return sendFile(c, file)
}

func noConsoleFile(left bool) error {
	detail := "the console has no such file: it begins at /console"
	if left {
		detail = "this build has no console: it was made with the tag noconsole"
	}
	return &failure{code: errs.NotFound, detail: detail}
}

// sendFile answers with a file, compressed if the caller accepts gzip.
func sendFile(c echo.Context, file console.File) error {
	h := c.Response().Header()
	h.Set("Content-Security-Policy", consolePolicy)
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
	h.Set("Vary", "Accept-Encoding")
	h.Set(echo.HeaderCacheControl, "no-store")
	if file.Lasting {
		h.Set(echo.HeaderCacheControl, "public, max-age=31536000, immutable")
	}
	if takesGzip(c.Request()) {
		h.Set(echo.HeaderContentEncoding, "gzip")
		return c.Blob(http.StatusOK, file.ContentType, file.Zipped)
	}
	return c.Blob(http.StatusOK, file.ContentType, file.Body)
}

// takesGzip reports whether a caller accepts gzip. A caller that names a weight for it gets the
// plain file, which is never wrong.
func takesGzip(r *http.Request) bool {
	for _, coding := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(coding) == "gzip" {
			return true
		}
	}
	return false
}
