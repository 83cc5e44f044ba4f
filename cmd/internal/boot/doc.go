// Package boot holds what the mains of Tandem share, so that all of them start, report errors, listen and stop in the same
// way.
//
// It takes a main's run function and its config struct. It provides the exit code, the effective configuration, listeners, a
// ready line on stdout, a logger on stderr, traces and a metrics registry.
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
// The config struct is the manual: its fields, their tags and their defaults are the only declaration of the flags, the
// environment variables and the keys of the config file (see [Program.Load]).
//
// boot knows no component of Tandem and no meaning of a flag beyond logging. It starts nothing by itself. It keeps no global
// state except OpenTelemetry's error handler and the outputs of Go's and gRPC's loggers, which are global.
package boot
