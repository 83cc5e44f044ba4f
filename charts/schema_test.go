package charts_test

import (
	"encoding/json"
	"os"
	"path"
	"strings"
	"testing"
)

// schema is what this test reads of a JSON schema.
type schema struct {
	Ref         string             `json:"$ref"`
	Description string             `json:"description"`
	Type        any                `json:"type"`
	Additional  any                `json:"additionalProperties"`
	Properties  map[string]*schema `json:"properties"`
	AllOf       []*schema          `json:"allOf"`
	Definitions map[string]*schema `json:"definitions"`
}

// TestSchemaIsComplete holds that schema and values.yaml know the same values and say the same of them, and that no mapping
// takes a key that it does not know. With -update it copies what values.yaml says into the schema.
func TestSchemaIsComplete(t *testing.T) {
	text, err := os.ReadFile(chart + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var top schema
	if err := json.Unmarshal(text, &top); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{"": "", "global": ""} // global is Helm's, not ours
	for _, v := range readValues(t) {
		v.path = strings.TrimSuffix(v.path, ".*")
		said[v.path] = v.meaning
		for parent := v.path; parent != ""; parent = parentOf(parent) {
			if _, ok := said[parent]; !ok {
				said[parent] = ""
			}
		}
	}
	known, updated := map[string]bool{}, string(text)
	top.walk("", top.Definitions, func(path string, s *schema) {
		known[path] = true
		meaning, ok := said[path]
		switch {
		case !ok:
			t.Errorf("the schema knows %s, but values.yaml does not have it", path)
		case meaning != "" && s.Description != meaning && *update:
			updated = strings.ReplaceAll(updated, description(t, s.Description), description(t, meaning))
		case meaning != "" && s.Description != meaning:
			t.Errorf("the schema says of %s\n\t%s\nbut values.yaml\n\t%s", path, s.Description, meaning)
		}
		if s.Properties != nil && s.Additional != false {
			t.Errorf("the schema takes keys of %s that it does not know", path)
		}
	})
	for path := range said {
		if !known[path] {
			t.Errorf("values.yaml has %s, but the schema does not know it", path)
		}
	}
	if *update {
		compare(t, chart+"/values.schema.json", updated)
	}
}

// description returns the line of a schema that says what a value means.
func description(t *testing.T, meaning string) string {
	t.Helper()
	var line strings.Builder
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(meaning); err != nil {
		t.Fatal(err)
	}
	return `"description": ` + strings.TrimSpace(line.String())
}

// walk visits the values of a schema. What a reference says is merged into it; decode is left out, being prefill again, and
// so are the parts of resources, which are Kubernetes' own.
func (s *schema) walk(at string, definitions map[string]*schema, visit func(string, *schema)) {
	for _, ref := range append(s.AllOf, s) {
		if ref.Ref == "" {
			continue
		}
		whole := *definitions[path.Base(ref.Ref)]
		if s.Description != "" {
			whole.Description = s.Description
		}
		s = &whole
	}
	visit(at, s)
	if at == "decode" || at == "encode" || path.Base(strings.ReplaceAll(at, ".", "/")) == "resources" {
		return
	}
	for key, property := range s.Properties {
		property.walk(strings.TrimPrefix(at+"."+key, "."), definitions, visit)
	}
}

func parentOf(at string) string { return at[:max(strings.LastIndexByte(at, '.'), 0)] }
