package capture

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

// file is the file that is written, with those that were full.
type file struct {
	path  string
	max   int64 // bytes of one file
	files int   // that are kept, this one included

	open *os.File
	size int64
}

// rotate begins a new file, and keeps the one before as path.1, that as path.2, and so on. Only the owner may read it.
func (f *file) rotate() error {
	if err := f.close(); err != nil {
		return err
	}
	_, err := os.Lstat(f.path)
	for i := f.files - 1; i >= 0 && err == nil; i-- { // without the file, an earlier call has done this and could not begin another one
		if i == f.files-1 {
			err = os.Remove(f.name(i))
		} else {
			err = os.Rename(f.name(i), f.name(i+1))
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		err = nil
	}
	f.open, err = os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	f.size = 0
	return err
}

// name returns the name of the file that was full i files ago.
func (f *file) name(i int) string {
	if i == 0 {
		return f.path
	}
	return f.path + "." + strconv.Itoa(i)
}

// regular reports a file that is there and cannot be kept under another name, such as a device.
func (f *file) regular() error {
	info, err := os.Lstat(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is there and is no regular file", f.path)
	}
	return err
}

// write appends whole lines. After an error there is no part of them in the file.
func (f *file) write(lines []byte) error {
	if f.open == nil {
		return os.ErrClosed
	}
	if n, err := f.open.Write(lines); err != nil {
		if n > 0 {
			err = errors.Join(err, f.open.Truncate(f.size), seek(f.open, f.size))
		}
		return err
	}
	f.size += int64(len(lines))
	return nil
}

func seek(f *os.File, to int64) error {
	_, err := f.Seek(to, 0)
	return err
}

func (f *file) close() error {
	if f.open == nil {
		return nil
	}
	err := f.open.Close()
	f.open = nil
	return err
}
