package envoyconf

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ownFilters are those that the bootstrap has itself. The picker must be asked once, and the router be last.
var ownFilters = []string{"envoy.filters.http.ext_proc", "envoy.filters.http.ext_proc.picker", "envoy.filters.http.ext_proc.acct", "envoy.filters.http.router"}

// operatorFilters returns a list of HTTP filters as text for the bootstrap, without a newline at the end. It checks that it is a
// list of named filters; whether their settings are right is Envoy's to say.
func operatorFilters(text string) (string, error) {
	if strings.TrimSpace(text) == "" {
		return "", nil
	}
	var filters []struct{ Name string }
	var list yaml.Node
	if err := yaml.Unmarshal([]byte(text), &list); err != nil {
		return "", fmt.Errorf("reading the HTTP filters: %w", err)
	}
	if err := list.Decode(&filters); err != nil {
		return "", errors.New("the HTTP filters are not a list of objects with a name")
	}
	for i, f := range filters {
		if f.Name == "" {
			return "", fmt.Errorf("HTTP filter %d has no name", i)
		}
		if slices.Contains(ownFilters, f.Name) {
			return "", fmt.Errorf("the HTTP filter %s is there already", f.Name)
		}
	}
	var written bytes.Buffer
	e := yaml.NewEncoder(&written)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(&list), e.Close()); err != nil {
		return "", fmt.Errorf("writing the HTTP filters: %w", err)
	}
	return strings.TrimSuffix(written.String(), "\n"), nil
}
