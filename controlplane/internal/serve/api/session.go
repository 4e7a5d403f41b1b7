package api

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
)

const (
	// sessionTime is the longest time of a login. A login also ends with its token.
	sessionTime = 12 * time.Hour
	// consoleHeader is on each call of the console. A page of another site cannot send it without
	// asking this server first, and the server does not allow it.
	consoleHeader = "Weir-Console"
)

// cookieName returns the name of the session's cookie. Under TLS its prefix keeps other hosts of
// the domain, and pages without TLS, from setting it.
func cookieName(secure bool) string {
	if secure {
		return "__Host-weir-session"
	}
	return "weir-session"
}

// isSecure reports whether the browser speaks TLS, to this process or to a proxy before it. A
// caller that invents the header changes only the name of its own cookie.
func isSecure(r *http.Request) bool {
	return r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// ownPage reports whether a request comes from the console itself: a cookie goes with whatever
// request a browser makes, also for a page of another site.
func ownPage(r *http.Request) bool {
	if r.Header.Get(consoleHeader) == "" {
		return false
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site == "same-origin"
	}
	origin := r.Header.Get("Origin")
	if origin == "" { // Browsers name it with every change.
		return r.Method == http.MethodGet
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

var errForeignPage = &failure{code: errs.Forbidden,
	detail: "a session counts only for calls of the console itself, from its own origin and with the header " +
		consoleHeader + "; other programs send a token: Authorization: Bearer TOKEN"}

// sessionCookie returns the text of the session's cookie, empty if there is none.
func sessionCookie(r *http.Request) string {
	c, err := r.Cookie(cookieName(isSecure(r)))
	if err != nil {
		return ""
	}
	return c.Value
}

// inSession returns the secret of a session's token. The token is looked up with each call, so that
// a session ends when its token does.
func (s *server) inSession(c echo.Context, sealed string) (secret string, err error) {
	if !ownPage(c.Request()) {
		return "", errForeignPage
	}
	key, err := s.sessionKey()
	if err != nil {
		return "", err
	}
	session, err := auth.OpenSession(key, sealed, s.config.Now())
	c.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	return session.Secret, err
}

func (s *server) sessionKey() (key [32]byte, err error) {
	deployment, err := s.config.Hub.Secret()
	if err != nil {
		return key, &failure{code: errs.StoreUnavailable, detail: followError(err), cause: err, quiet: true}
	}
	return auth.SessionKey(deployment), nil
}

// session is the console's knowledge about its login.
type session struct {
	Name string    `json:"name"`
	Role auth.Role `json:"role"`
	// Expires is the token's end; nil if the token does not expire.
	Expires *time.Time `json:"expires_at,omitempty"`
	// Dashboard is Config.Dashboard.
	Dashboard string `json:"dashboard_url,omitempty"`
}

func (s *server) sessionOf(t auth.Token) session {
	shown := session{Name: t.Name, Role: t.Role, Dashboard: s.config.Dashboard}
	if !t.Expires.IsZero() {
		utc := t.Expires.UTC()
		shown.Expires = &utc
	}
	return shown
}

// login takes a token for a cookie.
func (s *server) login(c echo.Context) error {
	if !ownPage(c.Request()) {
		return errForeignPage
	}
	var body struct {
		Token string `json:"token"`
	}
	if err := json.NewDecoder(c.Request().Body).Decode(&body); err != nil {
		return badRequest("the body must be JSON with the field token")
	}
	key, err := s.sessionKey()
	if err != nil {
		return err
	}
	secret := strings.TrimSpace(body.Token)
	token, err := s.config.Tokens.Find(secret)
	if err != nil {
		return s.refuseToken(c, token, err)
	}
	if err := s.welcomeCaller(c, nil); err != nil {
		return err
	}
	if !token.Role.May(auth.Viewer) {
		s.noteRefused(c, token, "the console needs the role viewer")
		return &failure{code: errs.Forbidden, detail: "the console needs the role viewer, editor or admin; the token " +
			token.Name + " has the role " + string(token.Role)}
	}
	ends := s.config.Now().Add(sessionTime)
	if !token.Expires.IsZero() && token.Expires.Before(ends) {
		ends = token.Expires
	}
	var nonce [auth.NonceSize]byte
	rand.Read(nonce[:]) // It never fails.
	s.setCookie(c, auth.Session{Secret: secret, Ends: ends}.Seal(key, nonce), ends)
	s.config.Log.Info("login to the console", "id", requestID(c), "token", token.Name, "role", token.Role,
		"address", s.originOf(c.Request()), "ends", ends.UTC().Format(time.RFC3339))
	return s.sendSession(c, token)
}

// whoami answers whose token a call is made with.
func (s *server) whoami(c echo.Context) error {
	token, err := s.tokenOf(c)
	if err != nil {
		return err
	}
	return s.sendSession(c, token)
}

func (s *server) sendSession(c echo.Context, token auth.Token) error {
	c.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	return c.JSON(http.StatusOK, s.sessionOf(token))
}

// logout takes the cookie back.
func (s *server) logout(c echo.Context) error {
	if !ownPage(c.Request()) {
		return errForeignPage
	}
	s.setCookie(c, "", time.Time{})
	c.Response().Header().Set("Clear-Site-Data", `"cache"`)
	return c.NoContent(http.StatusNoContent)
}

// setCookie sets the session's cookie until it ends; an empty value removes the cookie.
func (s *server) setCookie(c echo.Context, value string, ends time.Time) {
	safe := isSecure(c.Request())
	cookie := &http.Cookie{Name: cookieName(safe), Value: value, Path: "/", HttpOnly: true, Secure: safe,
		SameSite: http.SameSiteStrictMode, MaxAge: -1}
	if value != "" {
		cookie.MaxAge = max(1, int(ends.Sub(s.config.Now())/time.Second))
	}
	http.SetCookie(c.Response(), cookie)
}

// tokenOf finds the token that a request shows, in its header or by its session.
func (s *server) tokenOf(c echo.Context) (auth.Token, error) {
	header := c.Request().Header.Get(echo.HeaderAuthorization)
	scheme, secret, _ := strings.Cut(header, " ")
	sealed := sessionCookie(c.Request())
	switch {
	case header == "" && sealed != "":
		var err error
		secret, err = s.inSession(c, sealed)
		if err != nil {
			return auth.Token{}, err
		}
	case !strings.EqualFold(scheme, "bearer"): // The rest may be a token: do not log it.
		return auth.Token{}, errScheme
	}
	return s.config.Tokens.Find(strings.TrimSpace(secret))
}

// explainedAuth reports whether an error is an answer already, rather than a token that is wrong.
func explainedAuth(err error) bool {
	var f *failure
	return errors.As(err, &f)
}
