package fault

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestUsage holds the page for people against what a List accepts.
func TestUsage(t *testing.T) {
	page := Usage()
	var example Fault
	if err := json.Unmarshal([]byte(page[1]), &example); err != nil {
		t.Fatal(err)
	}
	args := map[string]string{Slow: Forever, Status: "503", BadHandoff: Damages()[0]}
	faults := []Fault{example}
	for _, name := range Kinds() {
		faults = append(faults, Fault{Fault: name, Arg: args[name]})
	}
	list := NewList()
	for _, f := range faults {
		if err := list.Add(f); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
	text := strings.Join(page, "\n")
	for _, name := range append(Kinds(), Damages()...) {
		if !strings.Contains(text, name) {
			t.Errorf("%s is missing in\n%s", name, text)
		}
	}
	if err := list.Add(Fault{Fault: "explode"}); err == nil || !strings.Contains(err.Error(), "want one of refuse, reset-before") {
		t.Errorf("an unknown fault: %v", err)
	}
}
