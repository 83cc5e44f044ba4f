package up

import (
	"errors"
	"fmt"
	"os"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// logs is the folder with the output of the programs.
type logs struct {
	dir       string
	temporary bool // it is removed at the end
}

// open makes the folder that the flags name, or a temporary one.
func (l *logFlags) open() (*logs, error) {
	if l.Dir != "" {
		if err := os.MkdirAll(l.Dir, 0o755); err != nil {
			return nil, boot.Missingf("making the folder for logs: %w (choose another with --log-dir)", err)
		}
		return &logs{dir: l.Dir}, nil
	}
	dir, err := os.MkdirTemp("", "tandem-up-logs")
	if err != nil {
		return nil, boot.Missingf("making a folder for logs: %w (choose one with --log-dir)", err)
	}
	return &logs{dir, true}, nil
}

// close removes a temporary folder, unless the stack has failed with err after programs were started: the error then names the
// folder.
func (l *logs) close(err error) error {
	written, _ := os.ReadDir(l.dir) // an error shows in RemoveAll
	if err != nil && len(written) > 0 {
		return fmt.Errorf("%w\nThe logs of all programs are in %s", err, l.dir)
	}
	if !l.temporary {
		return err
	}
	return errors.Join(err, os.RemoveAll(l.dir))
}
