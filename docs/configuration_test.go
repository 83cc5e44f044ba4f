package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
)

const module = "github.com/tandem-serving/tandem/"

// TestConfiguration writes docs/configuration.md's list of plugins from the plugin table and the comments of the plugins'
// structs, and the default configuration from the one that the picker has. Without -update it fails if the page is older.
func TestConfiguration(t *testing.T) {
	replaceBetween(t, "docs/configuration.md", "default configuration", "\n```yaml\n"+string(config.Default())+"```\n\n")
	replaceBetween(t, "docs/configuration.md", "plugins", pluginManual(t))
}

// TestPluginTypes writes docs/llm-d.md's table of llm-d's plugin types, what each is here, and the list of differences that
// tandem check --migrate prints from.
func TestPluginTypes(t *testing.T) {
	lines, differing := map[string]string{}, []string{}
	for _, row := range plugin.Table {
		params := reflect.TypeOf(row.New()).Elem()
		differences := aboutLLMD(named(structDoc(t, params).text, params.Name(), row.Type))
		if differences != "" {
			differing = append(differing, row.Type+"\t"+differences+"\n")
		}
		for _, name := range slices.Concat([]string{row.Type}, row.Aliases) {
			lines[name] = "served | " + differences
			if row.Flag != "" {
				lines[name] = "served with `" + row.Flag + "` | " + differences
			}
		}
		for _, name := range row.Deprecated {
			lines[name] = "served as `" + row.Type + "` | "
		}
	}
	for _, f := range config.ForeignTypes() {
		lines[f.Type] = "accepted without effect | " + f.Why
		if f.Refused {
			lines[f.Type] = "refused | " + f.Why
		}
	}
	var b strings.Builder
	b.WriteString("\n| Type | Here | Difference, or what to do |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, strings.TrimSuffix(lines[name], " "))
	}
	replaceBetween(t, "docs/llm-d.md", "plugin types", b.String()+"\n")
	slices.Sort(differing)
	file := filepath.Join(root, "cmd", "tandem", "check", "differences.txt")
	want := strings.Join(differing, "")
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s is older than the source: run make docs\n%v\n%s", file, err, firstDifference(string(got), want))
	}
}

// aboutLLMD returns the sentences of a plugin's comment that tell of llm-d's plugin: what differs on purpose.
func aboutLLMD(text string) string {
	var about []string
	for sentence := range strings.SplitSeq(strings.Join(strings.Fields(text), " "), ". ") {
		if strings.Contains(strings.ReplaceAll(sentence, "llm-d.ai", ""), "llm-d") {
			about = append(about, strings.TrimSuffix(sentence, ".")+".")
		}
	}
	return strings.Join(about, " ")
}

// pluginManual is one section for each plugin of the table, in its order and under the table's own comments.
func pluginManual(t *testing.T) string {
	t.Helper()
	groups := groupsOfTable(t)
	var b strings.Builder
	for _, row := range plugin.Table {
		if group := groups[row.Type]; group != "" {
			fmt.Fprintf(&b, "\n## %s\n", group)
		}
		params := reflect.ValueOf(row.New()).Elem()
		doc := structDoc(t, params.Type())
		fmt.Fprintf(&b, "\n### %s\n\n%s\n", row.Type, named(doc.text, params.Type().Name(), row.Type))
		if len(row.Aliases) > 0 {
			fmt.Fprintf(&b, "\nOther names of the same: `%s`.\n", strings.Join(row.Aliases, "`, `"))
		}
		if len(row.Deprecated) > 0 {
			fmt.Fprintf(&b, "\nOlder names, still read: `%s`.\n", strings.Join(row.Deprecated, "`, `"))
		}
		if rows := parameters(t, "", params); len(rows) > 0 {
			b.WriteString("\n| Parameter | Type | Default | Meaning |\n|---|---|---|---|\n" + strings.Join(rows, ""))
		}
	}
	return b.String() + "\n"
}

// groupsOfTable returns the comments in the literal of plugin.Table, by the type of the row below each.
func groupsOfTable(t *testing.T) map[string]string {
	t.Helper()
	file := filepath.Join(root, "epp", "plugin", "table.go")
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	byLine := map[int]string{}
	for _, comment := range parsed.Comments {
		byLine[set.Position(comment.End()).Line+1] = strings.TrimSuffix(strings.Join(strings.Fields(comment.Text()), " "), ".")
	}
	groups := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if pair, ok := n.(*ast.KeyValueExpr); ok {
			if key, isName := pair.Key.(*ast.Ident); isName && key.Name == "Type" {
				groups[text(pair.Value)] = byLine[set.Position(pair.Pos()).Line]
			}
		}
		return true
	})
	if len(groups) != len(plugin.Table) {
		t.Fatalf("%d rows were read of %s, and there are %d", len(groups), file, len(plugin.Table))
	}
	return groups
}

// documented is what the source says of a struct and of its fields.
type documented struct {
	text   string
	fields map[string]string
}

var structDocs = map[reflect.Type]documented{}

// structDoc reads the comments of a struct of this module.
func structDoc(t *testing.T, of reflect.Type) documented {
	t.Helper()
	if known, ok := structDocs[of]; ok {
		return known
	}
	dir, isOurs := strings.CutPrefix(of.PkgPath(), module)
	if !isOurs {
		t.Fatalf("%v is not a type of this module", of)
	}
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	d := documented{fields: map[string]string{}}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		d.read(parsed, of.Name())
	}
	structDocs[of] = d
	return d
}

// read takes the comments of a struct out of a file, if it is declared there.
func (d *documented) read(file *ast.File, name string) {
	for _, declaration := range file.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range group.Specs {
			declared, ok := spec.(*ast.TypeSpec)
			if !ok || declared.Name.Name != name {
				continue
			}
			d.text = prose(group.Doc.Text() + declared.Doc.Text())
			if fields, isStruct := declared.Type.(*ast.StructType); isStruct {
				for _, field := range fields.Fields.List {
					for _, n := range field.Names {
						d.fields[n.Name] = prose(field.Doc.Text() + field.Comment.Text())
					}
				}
			}
		}
	}
}

// prose joins the lines of a comment, and keeps its paragraphs.
func prose(comment string) string {
	paragraphs := strings.Split(strings.TrimSpace(comment), "\n\n")
	for i, p := range paragraphs {
		paragraphs[i] = strings.Join(strings.Fields(p), " ")
	}
	return strings.Join(paragraphs, "\n\n")
}

// named puts the name in the configuration in place of the name in Go with which a comment begins.
func named(comment, inGo, inConfig string) string {
	if rest, ok := strings.CutPrefix(comment, inGo+" "); ok {
		return "`" + inConfig + "` " + rest
	}
	return comment
}

// parameters returns the rows of a struct's fields; those of structs within have the path of the outer field before their names.
func parameters(t *testing.T, path string, params reflect.Value) (rows []string) {
	t.Helper()
	if params.Kind() != reflect.Struct {
		return nil
	}
	doc := structDoc(t, params.Type())
	for i := range params.NumField() {
		field := params.Type().Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if options == "inline" {
			rows = append(rows, parameters(t, path, params.Field(i))...)
			continue
		}
		if !field.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = strings.ToLower(field.Name)
		}
		meaning := doc.fields[field.Name]
		if meaning == "" {
			t.Errorf("%s: the field %s of %v has no comment", path+name, field.Name, params.Type())
		}
		meaning = inConfiguration(params.Type(), strings.ReplaceAll(named(meaning, field.Name, name), "\n\n", " "))
		meaning = strings.ReplaceAll(meaning, "|", "\\|")
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", path+name, typeWord(field.Type), valueText(t, params.Field(i)), meaning))
		inner, suffix := elementOf(field.Type)
		if inner.Kind() == reflect.Struct && strings.HasPrefix(inner.PkgPath()+"/", module) {
			rows = append(rows, parameters(t, path+name+suffix+".", reflect.New(inner).Elem())...)
		}
	}
	return rows
}

// inConfiguration puts the names of parameters in place of the names in Go of the fields of a struct.
func inConfiguration(of reflect.Type, text string) string {
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("yaml"), ",")
		if inGo := of.Field(i).Name; name != "" && name != "-" && name != strings.ToLower(inGo) {
			text = regexp.MustCompile(`\b`+inGo+`\b`).ReplaceAllString(text, "`"+name+"`")
		}
	}
	return text
}

// elementOf is what a field holds in the end, and how its path says so.
func elementOf(of reflect.Type) (inner reflect.Type, suffix string) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
		switch of.Kind() {
		case reflect.Slice:
			suffix += "[]"
		case reflect.Map:
			suffix += ".NAME"
		}
		of = of.Elem()
	}
	return of, suffix
}

// typeWord names a type as the author of a configuration knows it.
func typeWord(of reflect.Type) string {
	switch {
	case of.String() == "time.Duration":
		return "duration"
	case of.Kind() == reflect.Pointer:
		return typeWord(of.Elem())
	case of.Kind() == reflect.Slice:
		return "list of " + typeWord(of.Elem())
	case of.Kind() == reflect.Map, of.Kind() == reflect.Struct:
		return "mapping"
	case of.Kind() == reflect.Bool:
		return "true or false"
	case of.Kind() == reflect.Float64:
		return "number"
	case of.Kind() == reflect.String:
		return "text"
	case of.Kind() == reflect.Interface:
		return "any"
	}
	return "integer"
}

// valueText writes a default for a cell of a table. What is empty has none, and what is long stands in the comment.
func valueText(t *testing.T, value reflect.Value) string {
	t.Helper()
	switch kind := value.Kind(); {
	case kind == reflect.Struct, (kind == reflect.Pointer || kind == reflect.Slice || kind == reflect.Map) && value.IsNil():
		return ""
	case kind == reflect.String && value.String() == "":
		return ""
	}
	data, err := yaml.Marshal(value.Interface())
	if err != nil {
		t.Fatal(err)
	}
	written := strings.TrimSpace(string(data))
	if strings.Contains(written, "\n") {
		return "see the text"
	}
	return "`" + written + "`"
}

var documentField = regexp.MustCompile("`yaml:\"([a-zA-Z]+)")

// TestDocumentFields finds fields of the configuration file, outside of plugins, that the page does not name.
func TestDocumentFields(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(root, "epp", "config", "document.go"))
	if err != nil {
		t.Fatal(err)
	}
	section := pageNamed(t, "docs/configuration.md").section(t, "The file")
	fields := documentField.FindAllStringSubmatch(string(source), -1)
	if len(fields) < 20 {
		t.Fatalf("only %d fields were found", len(fields))
	}
	for _, found := range fields {
		if !strings.Contains(section, found[1]) {
			t.Errorf("docs/configuration.md does not name the field %s", found[1])
		}
	}
}

// The tables of all flags, written from what the programs print with --help.
func TestFlagTables(t *testing.T) {
	for _, args := range [][]string{{"epp"}, {"sidecar"}, {"batch"}, {"tandem", "load"}, {"tandem", "replay"}} {
		help := run(t, "", program(t, args[0]), append(args[1:], "--help")...)
		replaceBetween(t, "docs/flags.md", "flags of "+strings.Join(args, " "), flagTable(t, help))
	}
}

var defaultValue = regexp.MustCompile(`^(.*) \(default (.+)\)$`)

// flagTable reads the flags out of a program's help. What is not taken, or has no effect, stands in the tables below.
func flagTable(t *testing.T, help string) string {
	t.Helper()
	_, help, _ = strings.Cut(help, "\n\nUsage: ")
	_, help, found := strings.Cut(help, "\n\n")
	if !found {
		t.Fatal("the help has no flags")
	}
	for _, end := range []string{"\n\nNot taken:", "\n\nNot supported:", "\n\nEvery flag can also be set"} {
		help, _, _ = strings.Cut(help, end)
	}
	var b strings.Builder
	rows := 0
	for _, group := range strings.Split(help, "\n\n") {
		title, flags, _ := strings.Cut(group, ":\n")
		fmt.Fprintf(&b, "\n### %s\n\n| Flag | Default | Meaning |\n|---|---|---|\n", title)
		for _, entry := range strings.Split("\n"+flags, "\n  --")[1:] {
			flag, meaning, _ := strings.Cut(entry, "\n")
			meaning, fallback := strings.Join(strings.Fields(meaning), " "), ""
			if parts := defaultValue.FindStringSubmatch(meaning); parts != nil {
				meaning, fallback = parts[1], "`"+parts[2]+"`"
			} else if before, after, ok := strings.Cut(meaning, " (default "); ok {
				value, rest, _ := strings.Cut(after, ")")
				meaning, fallback = before+rest, "`"+value+"`"
			}
			fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", flag, fallback, strings.ReplaceAll(meaning, "|", "\\|"))
			rows++
		}
	}
	if rows < 20 {
		t.Errorf("only %d flags were read", rows)
	}
	return b.String() + "\n"
}
