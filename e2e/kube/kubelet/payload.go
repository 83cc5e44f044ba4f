package kubelet

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// file is one file of a volume that is made of objects.
type file struct {
	data string
	mode fs.FileMode
}

// payload is what such a volume contains, by slash path in it.
type payload map[string]file

// dataLink names the link that says which folder holds the files now. All change together when it is replaced.
const dataLink = "..data"

// write makes a folder show a payload: each name at its top is a link into ..data, which is a link to a hidden folder with
// the files. A reader sees either all the old files or all the new ones. group owns the files if it is not negative.
func (p payload) write(dir string, group int) error {
	if err := p.check(); err != nil {
		return err
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fresh := ".." + rand.Text()
	if err := p.writeFiles(filepath.Join(dir, fresh), group); err != nil {
		return err
	}
	if err := replaceLink(filepath.Join(dir, dataLink), fresh); err != nil {
		return err
	}
	if err := p.link(dir); err != nil {
		return err
	}
	if old == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(dir, old))
}

// check refuses paths that lead out of the volume.
func (p payload) check() error {
	for name := range p {
		if !filepath.IsLocal(name) || strings.HasPrefix(name, "..") {
			return fmt.Errorf("%w: a file named %q in a volume", errUnsupported, name)
		}
	}
	return nil
}

func (p payload) writeFiles(dir string, group int) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for name, f := range p {
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, []byte(f.data), 0o600); err != nil {
			return err
		}
		if err := own(to, group, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// own sets a file's mode, and its group if there is one, which may then read it in any case.
func own(path string, group int, mode fs.FileMode) error {
	if group >= 0 {
		mode |= 0o440
		if err := os.Chown(path, -1, group); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode) // what the umask took away
}

// link makes the links at the top, and removes those of files that are gone.
func (p payload) link(dir string) error {
	var tops []string
	for name := range p {
		top, _, _ := strings.Cut(name, "/")
		if !slices.Contains(tops, top) {
			tops = append(tops, top)
		}
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range there {
		name := entry.Name()
		if i := slices.Index(tops, name); i >= 0 {
			tops = slices.Delete(tops, i, i+1)
		} else if !strings.HasPrefix(name, "..") {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	for _, top := range tops {
		if err := os.Symlink(filepath.Join(dataLink, top), filepath.Join(dir, top)); err != nil {
			return err
		}
	}
	return nil
}

// replaceLink makes a link point elsewhere, or makes it, in one step.
func replaceLink(link, to string) error {
	next := link + "_next"
	if err := os.Symlink(to, next); err != nil {
		return err
	}
	return os.Rename(next, link)
}
