package boot

import (
	"runtime"
	"runtime/debug"
)

// version is set at link time by a release build (-X …/boot.version=v1.2.3).
var version string

// Version describes the running build.
type Version struct {
	Number   string // release, or the module version the go command knows
	Revision string // commit, with "+dirty" if the tree had changes; may be empty
	Go       string // toolchain
}

// ReadVersion reads the version of the running build.
func ReadVersion() Version {
	v := Version{Number: version, Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v.orUnknown()
	}
	if v.Number == "" {
		v.Number = info.Main.Version
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			v.Revision += "+dirty"
		}
	}
	return v.orUnknown()
}

func (v Version) orUnknown() Version {
	if v.Number == "" {
		v.Number = "(devel)"
	}
	return v
}

// String returns number, revision and toolchain on one line.
func (v Version) String() string {
	s := v.Number
	if v.Revision != "" {
		s += " " + v.Revision
	}
	return s + " " + v.Go
}
