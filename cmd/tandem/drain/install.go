package drain

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// installedName is the name of the copy.
const installedName = "tandem"

// install copies this program into a folder, atomically, so that no container runs half of it.
func install(out io.Writer, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return boot.Missingf("finding this program: %w", err)
	}
	source, err := os.Open(self)
	if err != nil {
		return boot.Missingf("reading this program: %w", err)
	}
	defer source.Close()
	to := filepath.Join(dir, installedName)
	if err := place(source, dir, to); err != nil {
		return boot.Missingf("installing the program: %w (check that %s is a folder that this user may write to)", err, dir)
	}
	_, err = fmt.Fprintf(out, "installed %s\n", to)
	return err
}

func place(source io.Reader, dir, to string) error {
	file, err := os.CreateTemp(dir, "."+installedName+"-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(file, source)
	if err == nil {
		err = file.Chmod(0o755) // other users run it, in their containers
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
