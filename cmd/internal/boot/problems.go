package boot

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"strconv"
)

// Validator is a config struct, or a struct inside it, that checks its values. Load calls it after all values are set.
type Validator interface {
	Validate(p *Problems)
}

// Problems collects the problems of a configuration, at most one for each field, since a second one is mostly a consequence
// of the first.
type Problems struct {
	table *table
	list  []problem
	usage bool // a value on the command line could not be read
}

type problem struct {
	field, origin string
	err           error
}

// Add reports a problem of the named flag (without dashes); format and args are those of fmt.Errorf. A package that may not
// import boot can take Add as a function.
func (p *Problems) Add(flag, format string, args ...any) {
	var origin string
	if o := p.table.byName[flag]; o != nil {
		flag, origin = o.name, o.origin
	}
	p.add(flag, origin, fmt.Errorf(format, args...))
}

// Require reports a problem unless ok.
func (p *Problems) Require(ok bool, flag, format string, args ...any) {
	if !ok {
		p.Add(flag, format, args...)
	}
}

// RequirePort reports a port that is neither a TCP port nor 0 (any free one).
func (p *Problems) RequirePort(flag string, port int) {
	p.Require(port >= 0 && port <= 65535, flag, "%d is not a port (0 to 65535; 0 takes any free one)", port)
}

// RequireAddress reports an address that is not HOST:PORT. An empty host means all interfaces, port 0 any free port.
func (p *Problems) RequireAddress(flag, address string) {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	p.Require(err == nil, flag, "%q is not HOST:PORT (port 0 to 65535; 0 takes any free one)", address)
}

func (p *Problems) add(field, origin string, err error) {
	for _, known := range p.list {
		if known.field == field {
			return
		}
	}
	p.list = append(p.list, problem{field, origin, err})
}

// joined returns all problems as one error, one per line, or nil.
func (p *Problems) joined() error {
	var errs []error
	for _, one := range p.list {
		if one.origin != "" {
			errs = append(errs, fmt.Errorf("%s: %w (%s)", one.field, one.err, one.origin))
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %w", one.field, one.err))
	}
	return errors.Join(errs...)
}

// err returns the Exit for the problems. A value on the command line that cannot be read is a usage error, except with
// --check, whose user asks about the configuration.
func (p *Problems) err(check bool) error {
	err := p.joined()
	switch {
	case err == nil:
		return nil
	case p.usage && !check:
		return Exit{CodeUsage, fmt.Errorf("reading the command line:\n%w", err)}
	default:
		return Exit{CodeConfig, fmt.Errorf("checking the configuration:\n%w", err)}
	}
}

// validate calls the validators of cfg and of the structs inside it, innermost first.
func validate(cfg any, p *Problems) {
	v := reflect.ValueOf(cfg).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if _, leaf := field.Tag.Lookup("flag"); !leaf && field.IsExported() && field.Type.Kind() == reflect.Struct {
			validate(v.Field(i).Addr().Interface(), p)
		}
	}
	if c, ok := cfg.(Validator); ok {
		c.Validate(p)
	}
}
