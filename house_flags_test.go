package tandem_test

import (
	"fmt"
	"go/ast"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// checkFlags finds flags that are declared, in a struct for boot.Program, and that no code reads: a user sets them without effect.
// Flags that are refused or ignored, which their tags say, are not to be read.
func checkFlags(h house) (breaches []string) {
	for _, s := range h.sources {
		if s.test || !strings.HasPrefix(s.dir, "cmd/") {
			continue
		}
		for name, flag := range flagFields(s.syntax) {
			if !h.reads(s.dir, name) {
				breaches = append(breaches, fmt.Sprintf("%s declares --%s as %s, which is never read", s.path, flag, name))
			}
		}
	}
	return breaches
}

// flagFields returns the fields of a file's structs that are flags, with the names of the flags.
func flagFields(f *ast.File) map[string]string {
	found := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		fields, ok := n.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range fields.Fields.List {
			if field.Tag == nil {
				continue
			}
			text, err := strconv.Unquote(field.Tag.Value)
			tag := reflect.StructTag(text)
			flag := tag.Get("flag")
			if err != nil || flag == "" || tag.Get("refused") != "" || tag.Get("ignored") != "" {
				continue
			}
			for _, name := range field.Names {
				found[name.Name] = flag
			}
		}
		return true
	})
	return found
}

// reads reports whether a file of the folder, or one that imports it, selects a field of this name.
func (h house) reads(dir, field string) bool {
	return slices.ContainsFunc(h.sources, func(s source) bool {
		if s.test || s.dir != dir && !slices.Contains(s.imports, path.Join(module, dir)) {
			return false
		}
		read := false
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			selected, ok := n.(*ast.SelectorExpr)
			read = read || ok && selected.Sel.Name == field
			return !read
		})
		return read
	})
}
