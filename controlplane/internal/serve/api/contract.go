package api

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"

	description "github.com/weir-proxy/weir/api"
	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
)

// contract is api/openapi.yaml in the form that this package needs: each route with its rules for
// requests.
type contract struct {
	doc        *openapi3.T
	operations map[string]*operation // by method and echo's form of the path
}

// operation is one method of one path.
type operation struct {
	*openapi3.Operation
	doc          *openapi3.T
	method, path string
	item         *openapi3.PathItem
	// role is whom it is for; open operations have none.
	role auth.Role
	open bool
	// checked is true if requests must match the description. It is false for probes, scrapes and
	// filters: other versions of them may send fields that the description lacks.
	checked bool
	// waits is true if the answer comes when something happens. The patience for the store does not
	// bound it.
	waits bool
	// parameters are the path's and the operation's.
	parameters []*openapi3.Parameter
	// query holds the sorted names of the query parameters. lists holds, for each name, whether it
	// may be given several times.
	query []string
	lists map[string]bool
	// maxBody is the largest body in bytes; 0 if there is none.
	maxBody int64
	// json is set if the body is checked against its schema: where JSON is the only media type.
	// Documents have a validator.
	json *openapi3.MediaType
}

// loadContract reads the contract once in a process, since it takes a while and never changes.
var loadContract = sync.OnceValues(readContract)

func readContract() (*contract, error) {
	doc, err := openapi3.NewLoader().LoadFromData(description.YAML)
	if err != nil {
		return nil, fmt.Errorf("api/openapi.yaml: %w", err)
	}
	c := &contract{doc: doc, operations: map[string]*operation{}}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			o, err := newOperation(doc, method, path, item, op)
			if err != nil {
				return nil, fmt.Errorf("api/openapi.yaml: %s %s: %w", method, path, err)
			}
			c.operations[method+" "+strings.NewReplacer("{", ":", "}", "").Replace(path)] = o
		}
	}
	return c, nil
}

func newOperation(
	doc *openapi3.T, method, path string, item *openapi3.PathItem, op *openapi3.Operation,
) (*operation, error) {
	o := &operation{lists: map[string]bool{}, Operation: op, doc: doc, method: method, path: path, item: item,
		checked: strings.HasPrefix(path, "/v1/")}
	// The security names the role. A route without security is open.
	security := doc.Security
	if op.Security != nil {
		security = *op.Security
	}
	switch {
	case len(security) == 0:
		o.open = true
	case len(security) == 1 && len(security[0]["bearer"]) == 1:
		o.role = auth.Role(security[0]["bearer"][0])
	default:
		return nil, fmt.Errorf("security must be [] or [{bearer: [ROLE]}]")
	}
	// Collect the parameters.
	o.waits, _ = op.Extensions["x-waits"].(bool)
	for _, p := range slices.Concat(item.Parameters, op.Parameters) {
		o.parameters = append(o.parameters, p.Value)
		if p.Value.In == openapi3.ParameterInQuery {
			o.query = append(o.query, p.Value.Name)
			o.lists[p.Value.Name] = p.Value.Schema.Value.Type.Is(openapi3.TypeArray)
		}
	}
	slices.Sort(o.query)
	// A body needs a bound on its size.
	if op.RequestBody != nil {
		limit, ok := op.RequestBody.Value.Extensions["x-max-bytes"].(float64)
		if !ok || limit <= 0 {
			return nil, fmt.Errorf("the request body needs x-max-bytes")
		}
		o.maxBody = int64(limit)
		if content := op.RequestBody.Value.Content; len(content) == 1 {
			o.json = content["application/json"]
		}
	}
	return o, nil
}

// forNodes reports whether the filter calls it.
func (op *operation) forNodes() bool { return strings.HasPrefix(op.path, "/node/") }

// listOperations returns all operations, by path and then by method.
func (c *contract) listOperations() []*operation {
	rank := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	return slices.SortedFunc(maps.Values(c.operations), func(a, b *operation) int {
		if a.path != b.path {
			return strings.Compare(a.path, b.path)
		}
		return slices.Index(rank, a.method) - slices.Index(rank, b.method)
	})
}
