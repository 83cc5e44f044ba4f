// Package boot is what the mains of Tandem share, so that all of them start,
// complain, listen, report and stop in the same way.
//
// In goes a main's run function and its config struct; out come an exit code,
// the effective configuration, listeners, a ready line on stdout, a logger on
// stderr, traces and a metrics registry.
//
// A main reads:
//
//	func main() { boot.Main(run) }
//
//	func run(ctx context.Context, std boot.IO, args []string) error {
//		cfg := defaults()
//		if _, err := program.Load(std, &cfg, args); err != nil {
//			return err
//		}
//		log := cfg.Log.New(std)
//		…
//	}
//
// The config struct is the manual: its fields, their tags and their defaults
// are the only declaration of the flags, the environment variables and the
// keys of the config file (see [Program.Load]).
//
// What boot does not do: it knows no room of Tandem and no meaning of a flag
// beyond logging, it starts nothing by itself, and it keeps no global state
// except OpenTelemetry's error handler, which the SDK offers only globally.
package boot
