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
