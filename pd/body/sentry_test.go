package body

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestSentry(t *testing.T) {
	table := NewTable(Want{Path: "a.secret_name"}, Want{Path: "open"})
	remove := func(want int) bool { return want == 0 }
	for text, found := range map[string]bool{
		"--x\r\nContent-Disposition: form-data; name=\"open\"\r\n\r\n{\"open\":1}\r\n--x--": false,
		"--x\r\n\r\n{\"secret_name\":1}\r\n--x--":                                           true,
		"--x\r\n\r\n{\"secret\\u005fname\":1}\r\n--x--":                                     true,
		"secret name": false,
		"\\u00e9":     false,
		strings.Repeat("x", 100_000) + "secret_name": true,
		"": false,
	} {
		for size, src := range map[string]io.Reader{"whole": strings.NewReader(text), "bytes": iotest.OneByteReader(strings.NewReader(text))} {
			got, err := io.ReadAll(NewSentry(src, table, remove))
			switch {
			case found && !errors.Is(err, ErrHidden):
				t.Errorf("%.40q %s: error %v", text, size, err)
			case found && bytes.Contains(got, []byte("secret_name")):
				t.Errorf("%.40q %s: the name was released", text, size)
			case !found && (err != nil || string(got) != text):
				t.Errorf("%.40q %s: %q, %v", text, size, got, err)
			}
		}
	}
}
