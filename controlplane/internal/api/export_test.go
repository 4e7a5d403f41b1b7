package api

import (
	"net/http"
	"regexp"

	"github.com/labstack/echo/v4"
)

var parameter = regexp.MustCompile(`:([a-z]+)`)

// Routes are the methods and paths that a handler of New serves, paths written as in the description.
func Routes(h http.Handler) (routes []string) {
	for _, r := range h.(withHead).Routes() {
		if r.Method != echo.RouteNotFound {
			routes = append(routes, r.Method+" "+parameter.ReplaceAllString(r.Path, "{$1}"))
		}
	}
	return routes
}
