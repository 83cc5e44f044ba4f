package boot

import (
	"io"
	"os"
)

// EraseLine moves to the beginning of a terminal's line, and erases it.
const EraseLine = "\r\x1b[K"

// IsTerminal reports whether a person may read what is written there, so that a line can be updated in place.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
