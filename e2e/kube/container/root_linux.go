package container

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// plain is what nothing in a container may have.
	plain = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	// sharedMemory is the size of /dev/shm, that of most engines.
	sharedMemory = "size=64m"
)

// devices are those that each container has.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// part is something of a root: a file or folder of the machine, a link, or a folder of its own.
type part struct {
	target string // absolute, in the container
	tree   int    // of what is mounted there: a detached mount; 0: nothing is
	dir    bool
	mode   fs.FileMode // of a folder that nothing is mounted on
	link   string      // a symbolic link to that
}

// startRoot makes the root of a container and enters it.
func startRoot(l launch) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keeping mounts private: %w", err)
	}
	if err := unix.Sethostname([]byte(l.Hostname)); err != nil {
		return fmt.Errorf("setting the hostname: %w", err)
	}
	unix.Umask(0)
	parts, err := collect(l)
	if err != nil {
		return err
	}
	if err := changeRoot(l.Root); err != nil {
		return err
	}
	if err := makeSystem(); err != nil {
		return err
	}
	for _, p := range parts {
		if err := p.place(); err != nil {
			return fmt.Errorf("making %s: %w", p.target, err)
		}
	}
	return finish(l.Spec)
}

// collect opens all that comes from outside of the root, while it can be seen.
func collect(l launch) ([]part, error) {
	parts, err := imageParts(l.Spec.Image)
	if err != nil {
		return nil, fmt.Errorf("reading the image: %w", err)
	}
	for _, name := range devices {
		p, err := open(filepath.Join("/dev", name), filepath.Join("/dev", name), unix.MOUNT_ATTR_NOSUID)
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		p, err := open(filepath.Join(l.Etc, name), filepath.Join("/etc", name), plain|unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	// What lies in another mount comes after it.
	mounts := slices.Clone(l.Spec.Mounts)
	slices.SortStableFunc(mounts, func(a, b Mount) int {
		return cmp.Compare(strings.Count(filepath.Clean(a.Target), "/"), strings.Count(filepath.Clean(b.Target), "/"))
	})
	for _, m := range mounts {
		p, err := m.part()
		if err != nil {
			return nil, fmt.Errorf("mounting %s: %w", m.Target, err)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// part opens what a mount shows.
func (m Mount) part() (part, error) {
	if !filepath.IsAbs(m.Target) {
		return part{}, errors.New("the path is not absolute")
	}
	var attributes uint64 = plain
	if m.ReadOnly {
		attributes |= unix.MOUNT_ATTR_RDONLY
	}
	if m.Source == "" {
		return memory(m.Target, attributes)
	}
	return open(m.Source, m.Target, attributes)
}

// imageParts are folders before what is in them.
func imageParts(i Image) (parts []part, err error) {
	if i.Root != "" {
		if parts, err = rootParts(i.Root); err != nil {
			return nil, err
		}
	}
	for _, target := range slices.Sorted(maps.Keys(i.Files)) {
		p, err := open(i.Files[target], target, plain|unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	for _, path := range i.Shared {
		p, err := open(path, path, plain|unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

func rootParts(root string) (parts []part, err error) {
	err = filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		if err != nil || file == root {
			return err
		}
		p := part{target: strings.TrimPrefix(file, filepath.Clean(root)), dir: e.IsDir()}
		switch {
		case p.dir:
			info, err := e.Info()
			if err != nil {
				return err
			}
			p.mode = info.Mode()
		case e.Type() == fs.ModeSymlink:
			p.link, err = os.Readlink(file)
		default:
			p, err = open(file, p.target, plain|unix.MOUNT_ATTR_RDONLY)
		}
		if err == nil {
			parts = append(parts, p)
		}
		return err
	})
	return parts, err
}

// open makes a detached mount of something on this machine.
func open(source, target string, attributes uint64) (part, error) {
	info, err := os.Stat(source)
	if err != nil {
		return part{}, err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err == nil {
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attributes})
	}
	if err != nil {
		return part{}, &fs.PathError{Op: "mount", Path: source, Err: err}
	}
	return part{target: target, tree: tree, dir: info.IsDir()}, nil
}

// memory makes a detached mount of an empty folder that every user may write to.
func memory(target string, attributes uint64) (part, error) {
	context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return part{}, err
	}
	defer unix.Close(context)
	if err := unix.FsconfigSetString(context, "mode", "1777"); err != nil {
		return part{}, err
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return part{}, err
	}
	tree, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, int(attributes))
	return part{target: target, tree: tree, dir: true}, err
}

// changeRoot makes an empty file system in memory the root.
func changeRoot(at string) error {
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mounting the root: %w", err)
	}
	if err := os.Chdir(at); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the old root: %w", err)
	}
	return os.Chdir("/")
}

// makeSystem makes what a runtime gives each container. Root may write to /proc/sys even without capabilities.
func makeSystem() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, m := range []struct {
		kind, at string
		flags    uintptr
		options  string
	}{{"proc", "/proc", flags, ""}, {"sysfs", "/sys", flags | unix.MS_RDONLY, ""}, {"tmpfs", "/dev/shm", flags, sharedMemory}} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mounting %s: %w", m.at, err)
		}
	}
	for _, path := range []string{"/proc/sys", "/proc/sysrq-trigger"} {
		p, err := open(path, path, plain|unix.MOUNT_ATTR_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			continue // not every Linux has it
		}
		if err == nil {
			err = p.place()
		}
		if err != nil {
			return err
		}
	}
	for link, to := range map[string]string{"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink("/proc/self/"+to, "/dev/"+link); err != nil {
			return err
		}
	}
	return nil
}

// place puts a part where it belongs, and makes the folders on the way.
func (p part) place() error {
	if err := os.MkdirAll(filepath.Dir(p.target), 0o755); err != nil {
		return err
	}
	if p.link != "" {
		return os.Symlink(p.link, p.target)
	}
	if err := p.makePoint(); err != nil || p.tree == 0 {
		return err
	}
	err := unix.MoveMount(p.tree, "", unix.AT_FDCWD, p.target, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
	return errors.Join(err, unix.Close(p.tree))
}

// makePoint makes what a part is mounted on, if it is not there, or the folder that it is.
func (p part) makePoint() error {
	if p.dir {
		if err := os.MkdirAll(p.target, 0o755); err != nil || p.tree != 0 {
			return err
		}
		return os.Chmod(p.target, p.mode)
	}
	f, err := os.OpenFile(p.target, os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// finish makes what is the container's own, and lets the root be written to or not.
func finish(s Spec) error {
	if err := os.MkdirAll(filepath.Join("/", s.Dir), 0o755); err != nil {
		return fmt.Errorf("making the working directory: %w", err)
	}
	if s.ReadOnlyRoot {
		err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		if err != nil {
			return fmt.Errorf("making the root read-only: %w", err)
		}
		return nil
	}
	if err := os.MkdirAll("/tmp", 0o755); err != nil {
		return fmt.Errorf("making /tmp: %w", err)
	}
	return os.Chmod("/tmp", 0o777|fs.ModeSticky)
}
