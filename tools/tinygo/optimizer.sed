# Has TinyGo's optimizer call markCold, of transform/cold.go here, before LLVM copies functions into
# their callers.
s|^\tpasses := fmt\.Sprintf("thinlto-pre-link<%s>", optLevel)$|\tif err := markCold(mod); err != nil {\
\t\treturn []error{err}\
\t}\
&|
