package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/epp"
)

// YAML returns the configuration in use, defaults included, with a comment at each addition that says why it is there. Parse
// reads it as the same configuration.
func (c *Config) YAML() []byte { return encode(c.node()) }

func (c *Config) node() *yaml.Node {
	root := mapping(pair("apiVersion", text(apiVersion)), pair("kind", text(kind)))
	add := func(key string, value *yaml.Node) { root.Content = append(root.Content, text(key), value) }
	if c.queueing != nil {
		add("featureGates", list([]string{gateFlow}, text))
	}
	add("plugins", list(c.plugins, (*plugin).node))
	add("schedulingProfiles", list(c.profiles, profile.node))
	if len(c.parsers) > 0 {
		add("requestHandler", mapping(pair("parsers", list(c.parsers, ref))))
	}
	if c.detector != nil {
		add("saturationDetector", ref(c.detector))
	}
	if c.queueing != nil {
		add("flowControl", c.queueing.node())
	}
	add("dataLayer", c.dataLayerNode())
	return root
}

func encode(root *yaml.Node) []byte {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil { // only values that yaml cannot print, which no plugin's parameters are
		panic(fmt.Sprintf("printing the configuration: %v", err))
	}
	return out.Bytes()
}

// Digest names the configuration by its meaning: comments, layout, and what is written out although it is the default do not change it.
func (c *Config) Digest() string {
	root := c.node()
	uncomment(root)
	sum := sha256.Sum256(encode(root))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func uncomment(n *yaml.Node) {
	n.HeadComment = ""
	for _, child := range n.Content {
		uncomment(child)
	}
}

func (p *plugin) node() *yaml.Node {
	n := mapping(pair("name", text(p.name)), pair("type", text(p.row.Type)))
	if p.added != "" {
		n.HeadComment = "added: " + p.added
	}
	parameters := p.parameters(p.params)
	dropEmpty(parameters, p.parameters(p.row.New()))
	if len(parameters.Content) > 0 {
		n.Content = append(n.Content, text("parameters"), parameters)
	}
	return n
}

func (p *plugin) parameters(params epp.Plugin) *yaml.Node {
	n := &yaml.Node{}
	if err := n.Encode(params); err != nil {
		panic(fmt.Sprintf("printing the parameters of plugin %s: %v", p.name, err))
	}
	return n
}

// dropEmpty drops empty members from a mapping if their default is empty.
func dropEmpty(n, defaults *yaml.Node) {
	byDefault := map[string]*yaml.Node{}
	for i := 0; i+1 < len(defaults.Content) && defaults.Kind == yaml.MappingNode; i += 2 {
		byDefault[defaults.Content[i].Value] = defaults.Content[i+1]
	}
	var kept []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		d, ok := byDefault[key.Value]
		if ok && value.Kind == yaml.MappingNode {
			dropEmpty(value, d)
		}
		if !ok || !empty(value) || !empty(d) && d.Kind != yaml.MappingNode {
			kept = append(kept, key, value)
		}
	}
	n.Content = kept
}

func empty(n *yaml.Node) bool { return absent(n) || n.Value == "" && len(n.Content) == 0 }

func (p profile) node() *yaml.Node {
	return mapping(pair("name", text(p.name)), pair("plugins", list(p.entries, entry.node)))
}

func (e entry) node() *yaml.Node {
	n := ref(e.plugin)
	if e.scores {
		n.Content = append(n.Content, pair("weight", scalar(e.weight))...)
	}
	return n
}

func (s source) node() *yaml.Node {
	return mapping(pair("pluginRef", text(s.name)), pair("extractors", list(s.extractors, ref)))
}

func (c *Config) dataLayerNode() *yaml.Node {
	n := mapping(pair("injectDefaults", scalar(c.injectDefaults)))
	if c.discovery != nil {
		n.Content = append(n.Content, pair("discovery", ref(c.discovery))...)
	}
	if len(c.sources) > 0 {
		n.Content = append(n.Content, pair("sources", list(c.sources, source.node))...)
	}
	if c.syncInterval > 0 {
		n.Content = append(n.Content, pair("crossReplica", mapping(pair("syncInterval", text(c.syncInterval.String()))))...)
	}
	return n
}

func ref(p *plugin) *yaml.Node { return mapping(pair("pluginRef", text(p.name))) }

func mapping(pairs ...[]*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: slices.Concat(pairs...)}
}

func pair(key string, value *yaml.Node) []*yaml.Node { return []*yaml.Node{text(key), value} }

func list[T any](all []T, node func(T) *yaml.Node) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for _, one := range all {
		n.Content = append(n.Content, node(one))
	}
	return n
}

// text returns a text node, quoted if it would otherwise be read as another type.
func text(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

func scalar[T bool | int | int64 | float64](v T) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(v)}
}
