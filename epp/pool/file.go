package pool

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/epp"
)

// MaxFileSize bounds an endpoints file in bytes, as llm-d does.
const MaxFileSize = 1 << 20

// maxProblems bounds how many problems of a file an error lists.
const maxProblems = 50

// File reads the endpoints from a file: the parameters of llm-d's file-discovery. The file is YAML or JSON:
//
//	endpoints:
//	- name: decode-0            # unique in its namespace
//	  namespace: default        # may be left out
//	  address: 10.0.0.7         # IPv4 or IPv6
//	  port: "8000"              # text or number
//	  metricsHost: 10.0.0.7:9100 # host:port of the metrics page; address and port if left out
//	  labels: {llm-d.ai/role: decode}
type File struct {
	// Path is the endpoints file.
	Path string `yaml:"path"`
	// WatchFile has the file read again when it changes. Entries of the new file that are invalid are left out and logged. If
	// the file as a whole cannot be read, the endpoints stay as they are.
	WatchFile bool `yaml:"watchFile"`
}

// Problems reports parameters that are invalid. It reads no file.
func (f *File) Problems(report epp.Report) {
	if f.Path == "" {
		report("path", "must name the endpoints file")
	}
}

// Load reads the file. The error lists all its problems, with their lines.
func (f *File) Load() ([]epp.Spec, error) {
	_, specs, err := f.load()
	return specs, err
}

func (f *File) load() (data []byte, specs []epp.Spec, err error) {
	data, err = epp.ReadFile(f.Path, MaxFileSize)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the endpoints file: %w", err)
	}
	specs, problems, err := parseFile(data)
	if err = errors.Join(err, join(problems)); err != nil {
		return nil, nil, fmt.Errorf("reading the endpoints file %s: %w", f.Path, err)
	}
	return data, specs, nil
}

// join makes one error of problems, nil if there are none.
func join(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	more := ""
	if extra := len(problems) - maxProblems; extra > 0 {
		problems, more = problems[:maxProblems], fmt.Sprintf("\n  and %d more", extra)
	}
	return errors.New("\n  " + strings.Join(problems, "\n  ") + more)
}

// Discovery reads the file and returns a Discovery of its endpoints. The error lists the file's problems; log gets the
// problems of later versions of the file.
func (f *File) Discovery(log *slog.Logger) (Discovery, error) {
	data, specs, err := f.load()
	if err != nil {
		return nil, err
	}
	return &fileDiscovery{file: *f, log: log, data: data, specs: specs}, nil
}

// fileDiscovery is a Discovery that starts with the endpoints read when it was made.
type fileDiscovery struct {
	file  File
	log   *slog.Logger
	data  []byte
	specs []epp.Spec

	trouble atomic.Pointer[error] // nil: none
}

// Trouble returns the problems of the current file, nil if it has none.
func (d *fileDiscovery) Trouble() error {
	if err := d.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// Run implements Discovery.
func (d *fileDiscovery) Run(ctx context.Context, apply func([]epp.Spec)) error {
	apply(d.specs)
	if d.file.WatchFile {
		epp.WatchFile(ctx, d.file.Path, MaxFileSize, d.data, func(data []byte, err error) { d.changed(data, err, apply) })
	}
	return nil
}

// changed applies as much of a changed file as is valid.
func (d *fileDiscovery) changed(data []byte, err error, apply func([]epp.Spec)) {
	var specs []epp.Spec
	var problems []string
	if err == nil {
		specs, problems, err = parseFile(data)
	}
	if err == nil && len(specs) == 0 && len(problems) > 0 {
		err = fmt.Errorf("no entry is valid: %w", join(problems))
	}
	d.trouble.Store(nil)
	if err != nil {
		err = fmt.Errorf("endpoints file %s cannot be used: %w", d.file.Path, err)
		d.trouble.Store(&err)
		d.log.Error("the endpoints stay as they are", "error", err)
		return
	}
	if len(problems) > 0 {
		left := fmt.Errorf("entries of the endpoints file %s are left out: %w", d.file.Path, join(problems))
		d.trouble.Store(&left)
		d.log.Warn("endpoints are missing", "error", left)
	}
	apply(specs)
}

// parseFile reads an endpoints file. problems are those of single entries, which specs lacks; err is a problem of the file as
// a whole.
func parseFile(data []byte) (specs []epp.Spec, problems []string, err error) {
	list, problems, err := endpointList(data)
	if err != nil {
		return nil, nil, err
	}
	var r entryReader
	for i, n := range list {
		before := len(r.problems)
		r.at = fmt.Sprintf("endpoints[%d]", i)
		if spec := r.entry(follow(n)); len(r.problems) == before {
			specs = append(specs, spec)
		}
	}
	return specs, append(problems, r.problems...), nil
}

// endpointList returns the entries of the file's only document.
func endpointList(data []byte) (list []*yaml.Node, problems []string, err error) {
	var doc, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&doc); err == io.EOF {
		return nil, nil, errors.New("the file is empty; a pool without endpoints is written endpoints: []")
	} else if err != nil {
		return nil, nil, err
	}
	if err := decoder.Decode(&second); err != io.EOF {
		return nil, nil, errors.New("there is more than one document")
	}
	root := follow(doc.Content[0])
	if root.Kind != yaml.MappingNode {
		return nil, nil, fmt.Errorf("line %d: want a mapping with the key endpoints", root.Line)
	}
	var found *yaml.Node
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch key := root.Content[i]; {
		case key.Value != "endpoints":
			problems = append(problems, fmt.Sprintf("line %d: unknown field %q", key.Line, key.Value))
		case found != nil:
			return nil, nil, fmt.Errorf("line %d: endpoints is there twice", key.Line)
		default:
			found = follow(root.Content[i+1])
		}
	}
	if found == nil || found.Kind != yaml.SequenceNode {
		return nil, nil, fmt.Errorf("line %d: want a list under the key endpoints", root.Line)
	}
	return found.Content, problems, nil
}

// follow returns the node that an alias refers to, or n if it is not an alias.
func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// entryReader reads the entries of a file and collects their problems.
type entryReader struct {
	at       string // path of the entry that is read
	problems []string
	names    map[id]int // lines, by name
	addrs    map[netip.AddrPort]int
}

func (r *entryReader) problem(n *yaml.Node, field, format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf("line %d: %s%s: ", n.Line, r.at, field)+fmt.Sprintf(format, args...))
}

// entry reads one endpoint. The result is invalid if it reported a problem.
func (r *entryReader) entry(n *yaml.Node) (spec epp.Spec) {
	if n.Kind != yaml.MappingNode {
		r.problem(n, "", "want a mapping with name, address and port")
		return spec
	}
	fields := r.fields(n)
	spec.Name = r.text(n, fields, "name", true)
	spec.Namespace = cmp.Or(r.text(n, fields, "namespace", false), defaultNamespace)
	spec.Addr = netip.AddrPortFrom(r.address(n, fields), r.port(n, fields))
	spec.Metrics = r.metricsHost(n, fields)
	spec.Labels = r.labels(fields["labels"])
	r.unique(n, &spec)
	return spec
}

// fields returns the values of an entry by their keys.
func (r *entryReader) fields(n *yaml.Node) map[string]*yaml.Node {
	fields := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch key.Value {
		case "name", "namespace", "address", "port", "metricsHost", "labels":
		default:
			r.problem(key, "."+key.Value, "unknown field; there are name, namespace, address, port, metricsHost and labels")
		}
		if fields[key.Value] != nil {
			r.problem(key, "."+key.Value, "is there twice")
		}
		fields[key.Value] = follow(n.Content[i+1])
	}
	return fields
}

// text returns a scalar, "" if it is missing.
func (r *entryReader) text(entry *yaml.Node, fields map[string]*yaml.Node, name string, needed bool) string {
	n := fields[name]
	switch {
	case n == nil || n.Kind == yaml.ScalarNode && n.Value == "" || n.ShortTag() == "!!null":
		if needed {
			r.problem(entry, "."+name, "is missing")
		}
		return ""
	case n.Kind != yaml.ScalarNode:
		r.problem(n, "."+name, "want text")
		return ""
	}
	return n.Value
}

func (r *entryReader) address(entry *yaml.Node, fields map[string]*yaml.Node) netip.Addr {
	text := r.text(entry, fields, "address", true)
	if text == "" {
		return netip.Addr{}
	}
	addr, err := netip.ParseAddr(text)
	// A zone is valid on one host only, and an Envoy that does not know it refuses the whole pool.
	if err != nil || addr.IsUnspecified() || addr.IsMulticast() || addr.Zone() != "" {
		r.problem(fields["address"], ".address", "want an IPv4 or IPv6 address of a pod, got %q", text)
	}
	return addr.Unmap()
}

func (r *entryReader) port(entry *yaml.Node, fields map[string]*yaml.Node) uint16 {
	text := r.text(entry, fields, "port", true)
	if text == "" {
		return 0
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		r.problem(fields["port"], ".port", "want a number from 1 to 65535, got %q", text)
	}
	return uint16(port)
}

func (r *entryReader) metricsHost(entry *yaml.Node, fields map[string]*yaml.Node) string {
	text := r.text(entry, fields, "metricsHost", false)
	if text == "" {
		return ""
	}
	if err := checkHostPort(text); err != nil {
		r.problem(fields["metricsHost"], ".metricsHost", "%v", err)
	}
	return text
}

func (r *entryReader) labels(n *yaml.Node) map[string]string {
	labels := make(map[string]string)
	if n == nil || n.ShortTag() == "!!null" {
		return labels
	}
	if n.Kind != yaml.MappingNode {
		r.problem(n, ".labels", "want a mapping from names to text")
		return labels
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], follow(n.Content[i+1])
		if value.Kind != yaml.ScalarNode {
			r.problem(value, ".labels."+key.Value, "want text")
			continue
		}
		if _, twice := labels[key.Value]; twice {
			r.problem(key, ".labels."+key.Value, "is there twice")
		}
		labels[key.Value] = value.Value
	}
	return labels
}

// unique checks that no earlier entry has the same name or address.
func (r *entryReader) unique(n *yaml.Node, spec *epp.Spec) {
	if r.names == nil {
		r.names, r.addrs = make(map[id]int), make(map[netip.AddrPort]int)
	}
	if line, twice := r.names[idOf(spec)]; twice && spec.Name != "" {
		r.problem(n, ".name", "%s is the name of the entry in line %d too", spec.Name, line)
	} else {
		r.names[idOf(spec)] = n.Line
	}
	if line, twice := r.addrs[spec.Addr]; twice && spec.Addr.IsValid() {
		r.problem(n, ".address", "%v is the address of the entry in line %d too", spec.Addr, line)
	} else {
		r.addrs[spec.Addr] = n.Line
	}
}
