package boot

import (
	"os"
	"strings"
	"testing"
)

func TestIsTerminal(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if IsTerminal(file) || IsTerminal(&strings.Builder{}) {
		t.Error("detected as a terminal")
	}
}
