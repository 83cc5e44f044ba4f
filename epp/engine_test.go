package epp

import (
	"encoding/json"
	"testing"
)

// Programs such as tandem explain read what the picker writes.
func TestEngineModeText(t *testing.T) {
	for mode := range EngineMode(len(engineModes)) {
		b, err := json.Marshal(mode)
		if err != nil {
			t.Fatal(err)
		}
		var read EngineMode
		if err := json.Unmarshal(b, &read); err != nil || read != mode {
			t.Errorf("%s is read as %q, %v", b, read, err)
		}
	}
}
