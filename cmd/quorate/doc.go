// Command quorate is the one program of the product: the server, the tools that ask and operate a
// cluster, and those that work on files alone.
//
// Each subcommand has a file of its own and is thin: it reads flags, calls a package, prints. What
// it prints for the caller goes to standard output, everything else to standard error.
//
// # What scripts may rely on
//
// Exit status: 0 done, or allowed; 1 an error; 2 wrong usage; 3 denied; 4 unavailable. An error is
// one line on standard error that starts with "quorate: " and says what to do. With -o json or yaml
// the fields are the same, named as on the wire; tables are for people and may change.
//
// # Duties of whoever adds a command
//
// Return an error instead of exiting; wrap it in unavailable, or return errDenied, where the status
// is another than 1, and usagef for wrong arguments. Write to the streams of the command, never to
// os.Stdout. Obey the context: it ends on SIGINT and SIGTERM.
package main
