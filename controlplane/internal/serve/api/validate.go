package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/policy"
)

// obeyContract lets a request pass if the description allows it: the caller has the required role,
// and the parameters, headers and body match. The router answers requests that no operation
// describes.
func (s *server) obeyContract(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		op := s.contract.operations[c.Request().Method+" "+c.Path()]
		if op == nil {
			return next(c)
		}
		who := caller{
			from: s.originOf(c.Request()), answer: c.Response().Header(), header: c.Request().Header, id: requestID(c),
			accept: c.Request().Header.Get("Accept"), contentType: c.Request().Header.Get("Content-Type")}
		// Authorize the caller.
		if !op.open {
			token, err := s.authorize(c, op)
			if err != nil {
				return err
			}
			who.name, who.role = token.Name, token.Role
			if !op.forNodes() {
				s.noteOrders(who.answer)
				s.noteRollout(who.answer)
			}
		}
		// Check the request against the description.
		if op.checked {
			if !op.waits {
				defer boundStoreTime(c)()
			}
			if err := op.checkRequest(c); err != nil {
				return err
			}
		}
		// Run the handler. Note a node whose message is refused.
		c.SetRequest(c.Request().WithContext(withCaller(c.Request().Context(), who)))
		err := s.separatePeople(c, op, next)
		if f := (*failure)(nil); op.forNodes() && errors.As(err, &f) &&
			(f.code == errs.BadRequest || f.code == errs.OtherProtocol) {
			s.noteNode(c, op, f.detail)
		}
		return err
	}
}

func (op *operation) checkRequest(c echo.Context) error {
	c.Request().URL.RawQuery = plainShare(c.Request().URL.RawQuery)
	if err := op.checkQuery(c.Request().URL); err != nil {
		return err
	}
	if err := op.checkParameters(c); err != nil {
		return err
	}
	if c.Request().Method != http.MethodGet {
		if err := plainBody(c.Request()); err != nil {
			return err
		}
	}
	return op.checkBody(c)
}

// checkQuery refuses parameters that the operation does not have.
func (op *operation) checkQuery(u *url.URL) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return badRequest("the query cannot be read: it must be name=value&name=value, percent-encoded")
	}
	for _, name := range op.query {
		if len(query[name]) > 1 && !op.lists[name] {
			return badRequest("%s is given %d times; give it once", name, len(query[name]))
		}
		delete(query, name)
	}
	if len(query) == 0 {
		return nil
	}
	known := "this takes none"
	if len(op.query) > 0 {
		known = "there are " + strings.Join(op.query, ", ")
		if len(op.query) == 1 {
			known = "there is " + op.query[0]
		}
	}
	return badRequest("there is no query parameter %q; %s", slices.Sorted(maps.Keys(query))[0], known)
}

// checkParameters checks the parameters in the path, the query and the headers. The error names all
// wrong parameters.
func (op *operation) checkParameters(c echo.Context) error {
	r := c.Request()
	input := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: pathParameters(c), QueryParams: r.URL.Query(),
		Route:   &routers.Route{Spec: op.doc, PathItem: op.item, Operation: op.Operation},
		Options: &openapi3filter.Options{SkipSettingDefaults: true},
	}
	var wrong []string
	missing := false
	for _, p := range op.parameters {
		if p.In == openapi3.ParameterInHeader && r.Header.Get(p.Name) == "" { // An empty header says nothing.
			r.Header.Del(p.Name)
			missing = missing || p.Required && p.Name == "If-Match"
			continue
		}
		err := openapi3filter.ValidateParameter(r.Context(), input, p)
		if err != nil || looseBool(p, input.QueryParams) {
			wrong = append(wrong, p.Name+" "+describeValues(p))
		}
	}
	switch {
	case len(wrong) > 0:
		return badRequest("%s", strings.Join(wrong, "; "))
	case missing:
		return errNoPrecondition
	}
	return nil
}

// looseBool reports whether a boolean is written otherwise than in JSON, as 1 or T, which libraries
// would take.
func looseBool(p *openapi3.Parameter, query url.Values) bool {
	if p.In != openapi3.ParameterInQuery || !query.Has(p.Name) || !p.Schema.Value.Type.Is(openapi3.TypeBoolean) {
		return false
	}
	value := query.Get(p.Name)
	return value != "true" && value != "false"
}

// describeValues describes the values that a parameter may have.
func describeValues(p *openapi3.Parameter) string {
	if text, ok := p.Extensions["x-must"].(string); ok {
		return text
	}
	return "is not as GET /docs describes it"
}

// pathParameters decodes the path's parameters once. The router has decoded them only if the path
// as sent is as Go would send it.
func pathParameters(c echo.Context) map[string]string {
	values := map[string]string{}
	for i, name := range c.ParamNames() {
		values[name] = c.ParamValues()[i]
		if c.Request().URL.RawPath != "" {
			if plain, err := url.PathUnescape(values[name]); err == nil {
				values[name] = plain
			}
		}
	}
	return values
}

// checkBody bounds the body. If it is plain JSON, checkBody compares it with its schema; the
// handler can read it again.
func (op *operation) checkBody(c echo.Context) error {
	if op.maxBody == 0 {
		return nil
	}
	r := c.Request()
	r.Body = http.MaxBytesReader(c.Response().Writer, r.Body, op.maxBody)
	if op.json == nil {
		return nil
	}
	body, err := readBody(r.Body)
	if err != nil {
		return err
	}
	// The decoder would put a replacement for each wrong byte, and a ban would meet another
	// consumer.
	if !utf8.Valid(body) {
		return op.badBody(policy.Problems{{Reason: "is not UTF-8"}})
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return op.badBody(nil)
	}
	if err := op.json.Schema.Value.VisitJSON(value, openapi3.VisitAsRequest(), openapi3.MultiErrors()); err != nil {
		problems := bodyProblems(nil, err)
		if isWellFormed(err) {
			return &failure{code: errs.BadRequest, problems: problems,
				detail: strings.ReplaceAll(problems.Error(), "\n", "; ")}
		}
		return op.badBody(problems)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.Header.Set(echo.HeaderContentType, echo.MIMEApplicationJSON) // Tools may send another default.
	return nil
}

func (op *operation) badBody(problems policy.Problems) error {
	example, err := json.Marshal(op.json.Example)
	if err != nil {
		return err
	}
	return &failure{code: errs.BadRequest, problems: problems,
		detail: "the body must be JSON like " + string(example)}
}

// bodyProblems adds the differences between a body and its schema to problems.
func bodyProblems(problems policy.Problems, err error) policy.Problems {
	var several openapi3.MultiError
	if errors.As(err, &several) {
		for _, one := range several {
			problems = bodyProblems(problems, one)
		}
		return problems
	}
	var wrong *openapi3.SchemaError
	if !errors.As(err, &wrong) {
		return append(problems, policy.Problem{Reason: "is not as GET /docs describes it"})
	}
	path := wrong.JSONPointer()
	if wrong.SchemaField == "properties" { // The path ends before the unknown field, which only the reason names.
		if _, rest, ok := strings.Cut(wrong.Reason, " "); ok {
			if name, err := strconv.QuotedPrefix(rest); err == nil {
				name, _ = strconv.Unquote(name)
				path = append(path, name)
			}
		}
	}
	return append(problems, policy.Problem{Path: fieldPath(path), Reason: fieldReason(wrong)})
}

// isWellFormed reports whether a body has the fields that it should and of the right types, and
// only values are wrong: an example would not help.
func isWellFormed(err error) bool {
	var several openapi3.MultiError
	if errors.As(err, &several) {
		return !slices.ContainsFunc(several, func(one error) bool { return !isWellFormed(one) })
	}
	var wrong *openapi3.SchemaError
	if !errors.As(err, &wrong) {
		return false
	}
	switch wrong.SchemaField {
	case "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems":
		return true
	}
	return false
}

// fieldReason says how a field is wrong. If only the value is wrong, it names the value.
func fieldReason(wrong *openapi3.SchemaError) string {
	switch wrong.SchemaField {
	case "required":
		return "is missing"
	case "properties":
		return "is not a field here"
	case "format":
		if wrong.Schema != nil && wrong.Schema.Format == "date-time" {
			return "must be a time like 2030-01-01T00:00:00Z"
		}
	case "type":
		if wrong.Schema != nil && wrong.Schema.Type != nil {
			return "must be of type " + strings.Join(wrong.Schema.Type.Slice(), " or ")
		}
	case "enum":
		if wrong.Schema != nil {
			return "must be " + listValues(wrong.Schema.Enum) + notThat(wrong.Value)
		}
	}
	if wrong.Schema != nil {
		if text, ok := wrong.Schema.Extensions["x-must"].(string); ok {
			return text + notThat(wrong.Value)
		}
	}
	return wrong.Reason + notThat(wrong.Value)
}

// listValues lists the values that a field may have, in words.
func listValues(values []any) string {
	words := make([]string, len(values))
	for i, value := range values {
		words[i] = fmt.Sprint(value)
	}
	if last := len(words) - 1; last > 0 {
		return strings.Join(words[:last], ", ") + " or " + words[last]
	}
	return strings.Join(words, "")
}

// mostShown bounds the characters of a wrong value that an answer repeats.
const mostShown = 64

// notThat names a value that a field may not have, empty where it has parts or is long.
func notThat(value any) string {
	switch value := value.(type) {
	case string:
		if len(value) <= mostShown {
			return fmt.Sprintf(", not %q", value)
		}
	case float64:
		return ", not " + strconv.FormatFloat(value, 'f', -1, 64)
	case bool:
		return ", not " + strconv.FormatBool(value)
	}
	return ""
}

// fieldPath writes a place as the policy language does: a.b[2].
func fieldPath(pointer []string) string {
	var path strings.Builder
	for _, part := range pointer {
		switch {
		case strings.Trim(part, "0123456789") == "":
			fmt.Fprintf(&path, "[%s]", part)
		case path.Len() > 0:
			path.WriteString("." + part)
		default:
			path.WriteString(part)
		}
	}
	return path.String()
}
