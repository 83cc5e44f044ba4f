package drain

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// installedName is the copy's name.
const installedName = "tandem"

// install copies this program into a folder, in one step, so that nobody ever runs half of it.
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
		return boot.Missingf("installing the program: %w (is %s a folder that this user may write to?)", err, dir)
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
		err = file.Chmod(0o755) // the containers that run it have other users
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
