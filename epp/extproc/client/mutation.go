package client

import (
	"net/http"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// Mutation is a server's change of headers or trailers, as Envoy applies it.
type Mutation struct {
	Set    []Field
	Remove []string // lower case
}

// Field is one header.
type Field struct {
	Name, Value string // the name in lower case
	Append      bool   // add a value instead of replacing the existing ones
}

// parseMutation reads the wire form as Envoy does: it ignores value and append_action.
func parseMutation(m *extproc.HeaderMutation) Mutation {
	var parsed Mutation
	for _, option := range m.GetSetHeaders() {
		h := option.GetHeader()
		//lint:ignore SA1019 deprecated, but the only way to append that Envoy supports
		adds := option.GetAppend().GetValue()
		parsed.Set = append(parsed.Set, Field{strings.ToLower(h.GetKey()), string(h.GetRawValue()), adds})
	}
	for _, name := range m.GetRemoveHeaders() {
		parsed.Remove = append(parsed.Remove, strings.ToLower(name))
	}
	return parsed
}

// Apply changes h, and path if it is not nil. It does not change headers that Envoy's default rules protect; rejected counts the
// attempts. It ignores a content-length, because Envoy counts streamed bodies itself.
func (m Mutation) Apply(h http.Header, path *string) (rejected int) {
	for _, name := range m.Remove {
		if protected(name) || name[0] == ':' {
			rejected++
			continue
		}
		h.Del(name)
	}
	for _, f := range m.Set {
		switch {
		case f.Name == ":path" && path != nil:
			*path = f.Value
		case f.Name == "content-length":
		case protected(f.Name) || f.Name[0] == ':':
			rejected++
		case f.Append:
			h.Add(f.Name, f.Value)
		default:
			h.Set(f.Name, f.Value)
		}
	}
	return rejected
}

func protected(name string) bool {
	return name == "" || name == "host" || strings.HasPrefix(name, "x-envoy-")
}

// pairs returns headers as Envoy sends them: names in lower case, values in raw_value.
func pairs(first []Field, h http.Header) *core.HeaderMap {
	list := make([]*core.HeaderValue, 0, len(first)+len(h))
	for _, f := range first {
		list = append(list, &core.HeaderValue{Key: f.Name, RawValue: []byte(f.Value)})
	}
	for name, values := range h {
		name = strings.ToLower(name)
		for _, v := range values {
			list = append(list, &core.HeaderValue{Key: name, RawValue: []byte(v)})
		}
	}
	return &core.HeaderMap{Headers: list}
}
