package dialect_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd/dialect"
)

func TestNew(t *testing.T) {
	for name, want := range map[string]bool{
		"nixlv2": true, "nixl": true, "": false, "NIXLv2": false, "nixlv1": false, "sglang ": false,
	} {
		if d, ok := dialect.New(name, dialect.Options{}); ok != want || (d != nil) != want {
			t.Errorf("%q: got %v, %v", name, d, ok)
		}
	}
}

// A connector of vLLM has one dialect, and each dialect of vLLM a connector.
func TestConnectors(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range dialect.Table {
		if (row.Engine == dialect.VLLM) != (len(row.Connectors) > 0) {
			t.Errorf("%s is a protocol of %s and has the connectors %q", row.Name, row.Engine, row.Connectors)
		}
		for _, connector := range row.Connectors {
			if found, ok := dialect.FindConnector(connector); seen[connector] || !ok || found.Name != row.Name {
				t.Errorf("%s is there twice, or its dialect is %q, %t", connector, found.Name, ok)
			}
			seen[connector] = true
		}
	}
	if row, ok := dialect.FindConnector("MultiConnector"); ok {
		t.Errorf("MultiConnector speaks what its connectors speak, and not %s", row.Name)
	}
}

// A name that two rows share would depend on their order.
func TestTableNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range dialect.Table {
		for _, name := range append([]string{row.Name}, row.Aliases...) {
			if name == "" || seen[name] {
				t.Errorf("%q is empty or there twice", name)
			}
			seen[name] = true
			if _, ok := dialect.New(name, dialect.Options{}); !ok {
				t.Errorf("%q is in the table and not found", name)
			}
		}
		if !strings.Contains(dialect.Names(), row.Name) {
			t.Errorf("%q is not listed in %q", row.Name, dialect.Names())
		}
	}
}
