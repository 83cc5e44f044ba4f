package check

import (
	_ "embed"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/epp/config"
)

// differencesText has a line for each plugin type whose effect differs from that in llm-d: the type, a tab, and the difference.
// make docs writes it from the comments of the plugins, as it does the table in docs/llm-d.md.
//
//go:embed differences.txt
var differencesText string

// writeDifferences prints what of a configuration of llm-d's has another effect here: the warnings, and the plugins that differ on
// purpose. name is that of the configuration.
func writeDifferences(w io.Writer, name string, c *config.Config) error {
	found := slices.Clone(c.Warnings)
	differences := map[string]string{}
	for line := range strings.Lines(differencesText) {
		plugin, difference, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		differences[plugin] = difference
	}
	for _, plugin := range c.Types() {
		if d := differences[plugin]; d != "" {
			found = append(found, plugin+": "+d)
		}
	}
	var text strings.Builder
	for _, one := range found {
		fmt.Fprintf(&text, "%s: %s\n", name, one)
	}
	if len(found) == 0 {
		fmt.Fprintf(&text, "%s: every part has the effect that it has in llm-d\n", name)
	}
	if _, err := io.WriteString(w, text.String()); err != nil {
		return fmt.Errorf("printing the differences: %w", err)
	}
	return nil
}
