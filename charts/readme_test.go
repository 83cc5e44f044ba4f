package charts_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The table of values in the chart's README stands between these lines.
const (
	readme     = chart + "/README.md"
	tableBegin = "<!-- The table is made from values.yaml by go test ./charts -update -->\n"
	tableEnd   = "<!-- End of the table -->\n"
)

func TestReadme(t *testing.T) {
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	_, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table of values", readme)
	}
	values := readValues(t)
	compare(t, readme, before+tableBegin+table(values)+tableEnd+after)
	known := map[string]bool{}
	for _, v := range values {
		for path := v.path; path != ""; path = path[:max(strings.LastIndexByte(path, '.'), 0)] {
			known[path] = true
		}
	}
	for _, named := range regexp.MustCompile("`([a-zA-Z]+(?:\\.[a-zA-Z]+)+)`").FindAllStringSubmatch(before+after, -1) {
		path := strings.Replace(strings.Replace(named[1], "decode.", "prefill.", 1), "encode.", "prefill.", 1)
		if head, _, _ := strings.Cut(path, "."); known[head] && !known[path] {
			t.Errorf("%s names the value %s, which does not exist", readme, named[1])
		}
	}
}

// Every value says what it is for, unless its name does: those are few, and listed.
func TestValuesAreDocumented(t *testing.T) {
	plain := regexp.MustCompile(`(^|\.)(repository|tag|digest|pullPolicy|replicas|resources|podLabels|podAnnotations|nodeSelector` +
		`|tolerations|affinity|priorityClassName|runtimeClassName|minReplicas|maxReplicas|logLevel|name|namespace|annotations` +
		`|imagePullSecrets|commonLabels|nameOverride|fullnameOverride|labels|interval)$`)
	for _, v := range readValues(t) {
		if v.meaning == "" && !plain.MatchString(v.path) {
			t.Errorf("values.yaml does not say what %s is for (a comment that begins with --)", v.path)
		}
	}
}

// value is a row of the table.
type value struct{ path, fallback, meaning string }

func table(values []value) string {
	var b strings.Builder
	b.WriteString("\n| Key | Default | Meaning |\n|---|---|---|\n")
	for _, v := range values {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.path, v.fallback, strings.ReplaceAll(v.meaning, "|", "\\|"))
	}
	b.WriteString("\n")
	return b.String()
}

func readValues(t *testing.T) (values []value) {
	t.Helper()
	text, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	walk(t, "", document.Content[0], &values)
	return values
}

// walk appends the values of a mapping. A mapping without keys is a value itself, and so is an alias: its keys are known.
func walk(t *testing.T, prefix string, mapping *yaml.Node, values *[]value) {
	for i := 0; i < len(mapping.Content); i += 2 {
		key, node := mapping.Content[i], mapping.Content[i+1]
		v := value{path: prefix + key.Value, meaning: meaning(key, node)}
		switch {
		case node.Kind == yaml.AliasNode:
			v.path, v.fallback = v.path+".*", "as `"+node.Value+"`"
			if v.meaning == "" {
				v.meaning = "As of the other role."
			}
		case node.Kind == yaml.MappingNode && len(node.Content) > 0 && node.Style&yaml.FlowStyle == 0 && key.Value != "resources":
			if v.meaning != "" {
				*values = append(*values, v)
			}
			walk(t, v.path+".", node, values)
			continue
		default:
			v.fallback = fallback(t, node)
		}
		*values = append(*values, v)
	}
}

// meaning is what the comment of a value says: above it after "--", or behind it.
func meaning(key, node *yaml.Node) string {
	if _, text, ok := strings.Cut("\n"+key.HeadComment, "\n# -- "); ok {
		return strings.Join(strings.Fields(strings.ReplaceAll(text, "\n#", " ")), " ")
	}
	if line := strings.TrimPrefix(key.LineComment+node.LineComment, "# "); line != "" {
		return strings.ToUpper(line[:1]) + line[1:] + "."
	}
	return ""
}

// fallback writes a default as JSON, which fits into a cell.
func fallback(t *testing.T, node *yaml.Node) string {
	t.Helper()
	var decoded any
	if err := node.Decode(&decoded); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(decoded); err != nil {
		t.Fatal(err)
	}
	return "`" + strings.TrimSpace(text.String()) + "`"
}
