package jinja

import (
	"testing"
	"time"
)

// TestKeepJSON: a dictionary whose JSON is kept has in each layout what another one has, whatever was made of it before.
func TestKeepJSON(t *testing.T) {
	read := func() *Dict {
		v, err := Decode([]byte(`{"name":"f","of":{"é":[1,2.5,null],"a":"<b>"}}`))
		if err != nil {
			t.Fatal(err)
		}
		return v.(*Dict)
	}
	kept := read()
	kept.KeepJSON()
	for _, source := range []string{"{{ d|tojson }}", "{{ d|tojson(indent=2) }}", "{{ d|tojson(indent=2) }}", "{{ d|tojson(sort_keys=true) }}", "{{ d|tojson }}{{ d|tojson }}", "{{ d|tojson(ensure_ascii=true) }}"} {
		template, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		var texts [2]string
		for i, d := range []*Dict{read(), kept} {
			text, err := template.Append(t.Context(), nil, map[string]Value{"d": d}, Options{Steps: 1000, Output: 1000, Now: time.Time{}})
			if err != nil {
				t.Fatal(err)
			}
			texts[i] = string(text)
		}
		if texts[0] != texts[1] {
			t.Errorf("%s: %q, and of one whose JSON is kept %q", source, texts[0], texts[1])
		}
	}
	template, err := Parse("{{ d|tojson }}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = template.Append(t.Context(), nil, map[string]Value{"d": kept}, Options{Steps: 1000, Output: 10, Now: time.Time{}}); err == nil {
		t.Error("a text that is too long is made of JSON that is kept")
	}
	if kept.Copy().kept != nil {
		t.Error("a copy, which may be changed, keeps its JSON")
	}
}
