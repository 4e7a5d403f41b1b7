// Package fromkong reads Kong's declarative configuration: the plugins rate-limiting and
// rate-limiting-advanced, at any place where Kong takes them, and the consumers that have limits of
// their own.
//
// Kong runs one instance of a plugin for a request, the most specific. Weir's policies all apply.
// So an instance becomes a policy for those routes that have no instance of their own.
package fromkong

import (
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// Import reads configurations, as `deck gateway dump` and kong.yaml have them. The error is an
// *importer.SyntaxError.
func Import(files []importer.File) (*importer.Result, error) {
	documents, source, err := importer.Documents(files)
	if err != nil {
		return nil, err
	}
	r := &reader{services: map[string]*importer.Tree{}}
	for _, doc := range documents {
		r.readEntities(doc)
	}
	r.b.Set.Source = source
	r.addIdentity()
	r.chooseDialect()
	// Instances of consumers come last: they override the policies of the other instances.
	for _, ofConsumers := range []bool{false, true} {
		for i := range r.instances {
			if one := &r.instances[i]; (one.consumer != "") == ofConsumers {
				r.readInstance(one)
			}
		}
	}
	return r.b.Result()
}

type reader struct {
	b importer.Builder
	// services are by name and by id.
	services  map[string]*importer.Tree
	routes    []route
	instances []instance
	consumers []*importer.Tree
	// auth are the plugins that find consumers.
	auth []*importer.Tree
}

// instance is a plugin of the configuration and the entities that it belongs to; empty for none.
type instance struct {
	plugin                           *importer.Tree
	name                             string
	service, route, consumer, groups string
	// policies are the policies made from the instance.
	policies []string
}

// placeText says where an instance is, for people.
func (i *instance) placeText() string {
	var parts []string
	for _, p := range [][2]string{
		{"route", i.route}, {"service", i.service}, {"consumer", i.consumer}, {"consumer group", i.groups},
	} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+p[1])
		}
	}
	if len(parts) == 0 {
		return "all services"
	}
	return strings.Join(parts, ", ")
}

// readEntities collects the services, routes, plugins and consumers of a document.
func (r *reader) readEntities(doc *importer.Tree) {
	for _, s := range doc.Get("services").Items() {
		name := nameOf(s)
		for _, key := range []string{name, s.Get("id").Text()} {
			r.services[key] = s
		}
		r.readPlugins(s.Get("plugins"), instance{service: name})
		for _, one := range s.Get("routes").Items() {
			r.readRoute(one, name)
		}
	}
	for _, one := range doc.Get("routes").Items() {
		r.readRoute(one, entityName(one.Get("service")))
	}
	for _, c := range doc.Get("consumers").Items() {
		r.consumers = append(r.consumers, c)
		r.readPlugins(c.Get("plugins"), instance{consumer: consumerName(c)})
	}
	for _, g := range doc.Get("consumer_groups").Items() {
		r.readPlugins(g.Get("plugins"), instance{groups: nameOf(g)})
	}
	r.readPlugins(doc.Get("consumer_group_plugins"), instance{})
	r.readPlugins(doc.Get("plugins"), instance{})
	r.readResource(doc)
	for _, one := range doc.Get("items").Items() { // A list, as kubectl writes it.
		r.readResource(one)
	}
}

// readResource names a plugin that limits and is a resource of Kubernetes. It does not say whose it
// is: the routes do, in annotations.
func (r *reader) readResource(of *importer.Tree) {
	kind := of.Get("kind").Text()
	if kind != "KongPlugin" && kind != "KongClusterPlugin" {
		return
	}
	plugin := of.Get("plugin")
	if !isLimit(plugin.Text()) {
		return
	}
	r.b.Not(plugin, plugin.Text()+" of "+kind+" "+of.Get("metadata").Get("name").Or("unnamed"),
		"resources of Kubernetes are not read: import what `deck gateway dump` writes of the gateway")
}

// readPlugins collects the plugins of an entity. Plugins of the document itself name their
// entities.
func (r *reader) readPlugins(list *importer.Tree, owner instance) {
	for _, p := range list.Items() {
		one := owner
		one.plugin, one.name = p, p.Get("name").Text()
		for _, ref := range []struct {
			key  string
			into *string
		}{
			{"service", &one.service}, {"route", &one.route}, {"consumer", &one.consumer},
			{"consumer_group", &one.groups},
		} {
			if name := entityName(p.Get(ref.key)); name != "" {
				*ref.into = name
			}
		}
		if isLimit(one.name) {
			r.instances = append(r.instances, one)
		} else if slices.Contains(authPlugins, one.name) {
			r.auth = append(r.auth, p)
		}
	}
}

// isLimit reports whether a plugin limits something, by its name.
func isLimit(name string) bool {
	for _, part := range []string{"rate-limit", "ratelimit", "service-protection", "request-size-limiting"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// entityName returns the entity that a field names: a text, or a mapping with a name or an id.
func entityName(t *importer.Tree) string {
	if text := t.Text(); text != "" {
		return text
	}
	return t.Get("name").Or(t.Get("username").Or(t.Get("id").Text()))
}

func nameOf(t *importer.Tree) string { return t.Get("name").Or(t.Get("id").Or("unnamed")) }

func consumerName(t *importer.Tree) string {
	return t.Get("username").Or(t.Get("custom_id").Or(t.Get("id").Or("unnamed")))
}

// isReplaced reports whether a more specific instance of the plugin runs at a route instead of i.
func (r *reader) isReplaced(i *instance, to *route) bool {
	for n := range r.instances {
		other := &r.instances[n]
		if other.name != i.name || other.consumer+other.groups != "" || other == i {
			continue
		}
		if rankOf(other) > rankOf(i) && other.coversRoute(to) {
			return true
		}
	}
	return false
}

// rankOf orders instances without a consumer by Kong's precedence.
func rankOf(i *instance) int {
	n := 0
	if i.route != "" {
		n += 2
	}
	if i.service != "" {
		n++
	}
	return n
}

// coversRoute reports whether an instance would run for a route.
func (i *instance) coversRoute(to *route) bool {
	return (i.route == "" || i.route == to.name || i.route == to.id) &&
		(i.service == "" || i.service == to.service || i.service == to.serviceID)
}

// scopeOf returns the requests that an instance limits, in as few matches as possible, and remarks
// about the differences.
func (r *reader) scopeOf(i *instance) (matches []importer.Match, remarks []string, impossible string) {
	var left []*route
	covered := 0
	for n := range r.routes {
		one := &r.routes[n]
		switch {
		case !i.coversRoute(one):
		case r.isReplaced(i, one):
			left = append(left, one)
		case one.impossible != "":
			impossible = one.impossible
		default:
			covered++
			matches = append(matches, one.matches...)
			remarks = append(remarks, one.remarks...)
		}
	}
	if rankOf(i) == 0 && len(left) == 0 && impossible == "" {
		return []importer.Match{{}}, nil, "" // All routes, also those that match nothing here.
	}
	if covered == 0 && impossible == "" {
		impossible = "no route of the file has it: each has a plugin of its own, or there is none"
	}
	matches = importer.Merge(matches)
	for _, other := range left {
		for _, m := range other.matches {
			if slices.ContainsFunc(matches, func(one importer.Match) bool { return importer.Overlap(one, m) }) {
				remarks = append(remarks, "Weir counts requests of route "+other.name+
					" here too, where Kong runs only that route's own plugin")
				break
			}
		}
	}
	if len(matches) > 1 {
		remarks = append(remarks, "Kong has one counter for all of its routes, Weir has one counter for each policy")
	}
	return matches, remarks, impossible
}
