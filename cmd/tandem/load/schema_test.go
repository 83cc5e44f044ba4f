package load

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestSchemaIsDocumented finds members of the JSON that docs/load.md does not name.
func TestSchemaIsDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "load.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## JSON\n")
	names := map[string]bool{}
	members(reflect.TypeFor[Result](), names)
	members(reflect.TypeFor[Record](), names)
	if len(names) < 60 {
		t.Fatalf("only %d members were found", len(names))
	}
	for name := range names {
		if !strings.Contains(section, "`"+name+"`") {
			t.Errorf("docs/load.md does not name %s", name)
		}
	}
	if !strings.Contains(section, "`"+Schema+"`") {
		t.Errorf("docs/load.md does not name %s", Schema)
	}
}

// members collects the names of a type's members, and of those inside them.
func members(of reflect.Type, names map[string]bool) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		members(of.Elem(), names)
	case reflect.Struct:
		for field := range of.Fields() {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
				names[name] = true
				members(field.Type, names)
			}
		}
	}
}
